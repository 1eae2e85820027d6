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
