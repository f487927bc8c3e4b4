/** Which references lead nowhere, and which still have to be looked up. */
import type { Audit } from "./audit.ts";
import { resolveReference } from "./paths.ts";
import { importCandidates, type Reference } from "./rules.ts";

export type ReferenceState = { readonly kind: "good" } | { readonly kind: "broken"; readonly path: string } | { readonly kind: "unknown"; readonly paths: readonly string[] };

const GOOD = { kind: "good" } as const;

/** References that lead out of the audited folder's root cannot be looked up and count as good. */
export function stateOfReference(audit: Audit, reference: Reference): ReferenceState {
  const path = resolveReference(reference.path, reference.target);
  if (path === undefined) return GOOD;
  const candidates = reference.kind === "import" ? importCandidates(path) : [path];
  if (candidates.some((candidate) => audit.files.has(candidate) || audit.folders.has(candidate))) return GOOD;
  const looked = candidates.map((candidate) => audit.facts.get(candidate));
  if (looked.some((facts) => facts !== undefined && facts !== null)) return GOOD;
  const open = candidates.filter((_, i) => looked[i] === undefined);
  return open.length === 0 ? { kind: "broken", path } : { kind: "unknown", paths: open };
}
