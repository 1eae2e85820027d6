import { CONFIG_SCHEMA, type ConfigKey } from './schema.ts';

const INTRODUCTION = `# Configuration

The server reads a TOML file, named by \`--config FILE\` or \`AENV_CONFIG_PATH\`; without one the defaults hold. Dotted names
are TOML tables: \`pool.low_watermark\` is \`low_watermark\` in \`[pool]\`. An unknown key or a bad value refuses to start and
names the key. Environment variables win over the file; an empty one counts as not there.

Paths may begin with \`$AENV_HOME\` (\`home_path\`), \`$AENV_RUNTIME\` (\`runtime_path\`) or \`$AENV_INSTALL\` (where the program is
installed). Other relative paths are relative to the configuration file.

The API key is no configuration key. It is taken from the environment variable \`AENV_API_KEY\`, else from the file
\`/run/secrets/api-key\`, else from \`secrets/api-key\` in \`home_path\`, which is made when it is not there. It has 32 to 256
characters of \`A-Z a-z 0-9 . _ ~ -\`; some clients insist on \`e2b_\` followed by lower-case hexadecimal digits, which is what
the server makes. What the server prints is never the key but where it is.

Clients measure timeouts differently: the v1 routes give a sandbox 15 seconds unless told otherwise, the v2 routes 300.

<!-- The table is generated from packages/server/src/config/schema.ts by scripts/generate-configuration.ts. -->
`;

/** The text of \`docs/configuration.md\`. */
export function renderConfigurationDocument(): string {
  const rows = Object.entries<ConfigKey<unknown>>(CONFIG_SCHEMA).map(
    ([name, { kind, default: standard, env, meaning }]) =>
      `| \`${name}\` | ${kind.name} | ${show(standard)} | ${env === undefined ? '–' : `\`${env}\``} | ${meaning} |`,
  );
  return [INTRODUCTION, '| key | type | default | environment | meaning |', '|---|---|---|---|---|', ...rows, ''].join(
    '\n',
  );
}

function show(value: unknown): string {
  if (value === undefined) return 'not set';
  return `\`${typeof value === 'string' ? value : JSON.stringify(value).replaceAll(',', ', ')}\``;
}
