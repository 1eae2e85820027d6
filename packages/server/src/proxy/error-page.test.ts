import { describe, expect, it } from 'vitest';
import { errorPage, prefersHtml } from './error-page.ts';

describe('who gets a page', () => {
  it.each(['text/html', 'text/html,application/xhtml+xml,*/*;q=0.8', 'application/json, TEXT/HTML;q=0.5'])(
    '%s',
    (accept) => {
      expect(prefersHtml(accept)).toBe(true);
    },
  );

  it.each([undefined, '', '*/*', 'application/json', 'text/*', 'text/html;q=0', 'text/html ; q=0.00', 'text/htmlx'])(
    'not %s',
    (accept) => {
      expect(prefersHtml(accept)).toBe(false);
    },
  );
});

describe('the page', () => {
  it('shows what happened and runs nothing that a client put into it', () => {
    const page = errorPage({ code: 502, message: 'gone', sandboxId: `<script>"'&`, port: 80 });
    expect(page).toContain('<code>&lt;script&gt;&quot;&#39;&amp;</code>');
    expect(page).not.toContain('<script>');
    expect(page).toContain("default-src 'none'");
  });
});
