/** Which results are kept out of the transcript (claim check): opt-in per agent and tool. */
import type { AgentDefinition } from "./definition.ts";

/** About a thousand tokens: smaller results cost less to show than to fetch again, and a card takes some 0.7 KB itself. */
export const DEFAULT_CLAIM_CHECK_OVER_BYTES = 4_096;
/** Enough to tell what kind of thing it is. */
export const DEFAULT_CLAIM_CHECK_PREVIEW_BYTES = 512;

export interface ClaimCheck {
  /** Results of more bytes than this go to a blob. */
  readonly overBytes: number;
  /** So many bytes of it, or a few less, are shown: the cut falls between code points. */
  readonly previewBytes: number;
}

/** How results of this tool are treated; undefined when they are shown as they are. */
export function claimCheckOf({ claim_check }: AgentDefinition, tool: string): ClaimCheck | undefined {
  if (claim_check === undefined || !claim_check.tools.includes(tool)) return undefined;
  const { over_bytes: overBytes = DEFAULT_CLAIM_CHECK_OVER_BYTES, preview_bytes } = claim_check;
  return { overBytes, previewBytes: preview_bytes ?? Math.min(DEFAULT_CLAIM_CHECK_PREVIEW_BYTES, Math.floor(overBytes / 2)) };
}
