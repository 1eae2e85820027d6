/** What the ledger and its worker thread say to each other. */
export type LedgerTable = 'sandboxes' | 'templates' | 'snapshots';

export type LedgerWrite =
  | { readonly kind: 'put'; readonly table: LedgerTable; readonly id: string; readonly record: string }
  | { readonly kind: 'delete'; readonly table: LedgerTable; readonly id: string };

export interface LedgerRow {
  readonly id: string;
  readonly record: string;
}

export type LedgerRequest =
  /** All of it in one transaction. */
  | { readonly kind: 'commit'; readonly writes: readonly LedgerWrite[] }
  | { readonly kind: 'load'; readonly table: LedgerTable }
  | { readonly kind: 'close' };

export interface LedgerFault {
  readonly name: string;
  readonly message: string;
  /** Primary SQLite result code, when the failure came from SQLite. */
  readonly sqliteCode: number | undefined;
}

export type LedgerReply =
  | { readonly ok: true; readonly rows: readonly LedgerRow[] }
  | { readonly ok: false; readonly fault: LedgerFault };

export interface LedgerWorkerData {
  readonly path: string;
  /** Largest size of the file, bytes; undefined: the disk is the limit. */
  readonly maxBytes: number | undefined;
}
