/** Whether a request comes from somebody who looks at pages; programs ask for anything or for JSON. */
export function prefersHtml(accept: string | undefined): boolean {
  return (accept ?? '').split(',').some((range) => {
    const [type = '', ...parameters] = range.split(';').map((part) => part.trim().toLowerCase());
    return type === 'text/html' && !parameters.some((parameter) => /^q=0(?:\.0*)?$/.test(parameter));
  });
}

export interface ErrorPageFacts {
  readonly code: number;
  readonly message: string;
  readonly sandboxId: string;
  readonly port?: number;
}

/** What a browser shows instead of the JSON of an answer; loads nothing and runs nothing. */
export function errorPage({ code, message, sandboxId, port }: ErrorPageFacts): string {
  const facts: readonly (readonly [string, string])[] = [
    ['Sandbox', sandboxId],
    ...(port === undefined ? [] : [['Port', String(port)] as const]),
  ];
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>${code} · ${escapeHtml(message)}</title>
<style>html{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:15vh auto;padding:0 1rem}
dt{float:left;clear:left;width:6rem;opacity:.7}dd{margin:0}</style>
</head>
<body>
<h1>${code}</h1>
<p>${escapeHtml(message)}</p>
<dl>
${facts.map(([name, value]) => `<dt>${name}</dt><dd><code>${escapeHtml(value)}</code></dd>`).join('\n')}
</dl>
</body>
</html>
`;
}

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

function escapeHtml(text: string): string {
  return text.replaceAll(/[&<>"']/g, (character) => ENTITIES[character] ?? '');
}
