export interface SandboxIdentity {
  readonly sandboxId: string;
  readonly templateId: string;
}

/** The variables every process gets and no request can change. */
export function identityVariables({ sandboxId, templateId }: SandboxIdentity): Readonly<Record<string, string>> {
  return { E2B_SANDBOX: 'true', E2B_SANDBOX_ID: sandboxId, E2B_TEMPLATE_ID: templateId };
}
