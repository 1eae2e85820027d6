import { HEADERS } from '@agentenv/protocol';
import { authoriseFileRequest } from './files/authorise.ts';
import { composeFiles } from './files/compose.ts';
import { downloadFile } from './files/download.ts';
import type { FilesContext } from './files/files-context.ts';
import { uploadFiles } from './files/upload.ts';
import { sendJson } from './http/answer.ts';
import { type Handler, headerOf, type Route } from './http/router.ts';
import { signalOfAnswer } from './http/signals.ts';
import { identityVariables, type SandboxIdentity } from './system/environment.ts';
import { metricsBody } from './system/metrics.ts';

export interface RoutesContext extends FilesContext, SandboxIdentity {
  readonly envVars: Readonly<Record<string, string>>;
}

/** The plain HTTP routes of the guest API by path (contract e2b.md section 8); `/init` and its like are none of them. */
export function createRoutes(context: RoutesContext): ReadonlyMap<string, Route> {
  const { agent, clock } = context;

  const health: Handler = (_request, response) => {
    response.writeHead(204).end();
  };
  const metrics: Handler = async (_request, response) => {
    sendJson(response, 200, metricsBody(await agent.metrics(signalOfAnswer(response)), clock.now()));
  };
  const environment: Handler = (_request, response) => {
    response.setHeader('Cache-Control', 'no-store');
    sendJson(response, 200, { ...context.envVars, ...identityVariables(context) });
  };
  const download: Handler = (request, response, query) => {
    authoriseFileRequest('read', headerOf(request, HEADERS.accessToken), query, context);
    return downloadFile(request, response, query, context);
  };
  const upload: Handler = (request, response, query) => {
    authoriseFileRequest('write', headerOf(request, HEADERS.accessToken), query, context);
    return uploadFiles(request, response, query, context);
  };
  const compose: Handler = (request, response) => composeFiles(request, response, context);

  return new Map<string, Route>([
    ['/health', { access: 'none', methods: { GET: health, HEAD: health } }],
    ['/metrics', { access: 'token', methods: { GET: metrics } }],
    ['/envs', { access: 'token', methods: { GET: environment } }],
    ['/files', { access: 'own', methods: { GET: download, HEAD: download, POST: upload } }],
    ['/files/compose', { access: 'token', methods: { POST: compose } }],
  ]);
}
