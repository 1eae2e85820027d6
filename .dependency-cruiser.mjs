/** The layer diagram of docs/architecture.md as rules: imports point downwards only. */
const layer = (name, allowed) => ({
  name: `${name}-imports-downwards-only`,
  severity: 'error',
  from: { path: `^packages/${name}/` },
  to: { path: '^packages/', pathNot: `^packages/(${[name, ...allowed].join('|')})/` },
});

export default {
  forbidden: [
    layer('protocol', []),
    layer('core', ['protocol']),
    layer('agent', ['core', 'protocol']),
    layer('storage', ['core', 'protocol']),
    layer('envd', ['agent', 'core', 'protocol']),
    layer('runtime', ['storage', 'agent', 'core', 'protocol']),
    layer('server', ['runtime', 'envd', 'storage', 'agent', 'core', 'protocol']),
    {
      name: 'packages-stand-alone',
      severity: 'error',
      from: { path: '^packages/' },
      to: { path: '^(e2e|bench|scripts)/' },
    },
    {
      name: 'black-box-stays-outside',
      comment: 'End-to-end tests use what a user has: the command line, HTTP and the published clients.',
      severity: 'error',
      from: { path: '^e2e/' },
      to: { path: '^packages/', pathNot: '/testing/' },
    },
    {
      name: 'set-up-needs-no-packages',
      comment:
        'Set-up and the doctor run before npm packages are there; doctor/server.ts is loaded only when they are.',
      severity: 'error',
      from: { path: '^scripts/(setup|doctor|lib)/', pathNot: '(\\.test\\.ts|doctor/server\\.ts)$' },
      to: { path: '^(packages|node_modules)/', dynamic: false, dependencyTypesNot: ['type-only'] },
    },
    {
      name: 'nothing-unresolvable',
      severity: 'error',
      from: {},
      to: { couldNotResolve: true },
    },
    {
      name: 'core-is-pure',
      comment: 'The domain has no I/O: clock, rng and ids are arguments.',
      severity: 'error',
      from: { path: '^packages/core/src/', pathNot: '\\.test\\.ts$' },
      to: { dependencyTypes: ['core'] },
    },
    {
      name: 'no-circular',
      severity: 'error',
      from: {},
      to: { circular: true, viaOnly: { dependencyTypesNot: ['type-only'] } },
    },
    {
      name: 'tests-stay-outside',
      severity: 'error',
      from: { path: '^packages/', pathNot: '(\\.test\\.ts|/testing/)' },
      to: { path: '(\\.test\\.ts$|/testing/)' },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    tsConfig: { fileName: 'tsconfig.json' },
    tsPreCompilationDeps: true,
    enhancedResolveOptions: { exportsFields: ['exports'], conditionNames: ['import', 'node', 'default', 'types'] },
  },
};
