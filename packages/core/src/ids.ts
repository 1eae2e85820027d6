declare const brand: unique symbol;
type Branded<Name extends string> = string & { readonly [brand]: Name };

/** `i` + 20 of `[a-z0-9]`: safe as a DNS label, no dash (contract/README, "sandbox id"). */
export type SandboxId = Branded<'SandboxId'>;
/** Same form as a sandbox id, or a well-known name such as `base`. */
export type TemplateId = Branded<'TemplateId'>;
/** UUIDv7 of one template build. */
export type BuildId = Branded<'BuildId'>;
/** UUIDv7 of one generation: one runtime instance of a sandbox (`sandboxInstanceId`). */
export type InstanceId = Branded<'InstanceId'>;
