/**
 * Places in a line of runs. A run that begins with another's view (a fork, a retry, the next run of a conversation) has a
 * journal of its own, whose rows have `seq` from 1 as every run's, and a line: its base's events up to where it begins,
 * then its own. A *position* is an event's place in that line, from 1 and without a gap: `seq + offset`, where the
 * offset is the number of events before the run's first. For a run without a base both are the same.
 *
 * An event of the base has the same position in the base's own line, since a line begins where its base's line begins:
 * that is why what a payload says of places (`to_seq`, a marker, a cut) stays true for every run that is begun with it.
 */

/** What a run's row says of where it begins. */
export interface BaseOf {
  readonly runId: string;
  /** The base's own seq up to which its events belong to the line. */
  readonly seq: number;
}

/** A run of a line, as its row tells it. */
export interface LineRun {
  readonly runId: string;
  /** Events of the line before this run's first: position = seq + offset. */
  readonly offset: number;
  readonly base?: BaseOf | undefined;
}

/** The part of a line that one run holds: its own seqs from 1 to `last`, at the positions from `offset + 1`. */
export interface Segment {
  readonly runId: string;
  readonly offset: number;
  /** Own seq of its last event in the line; undefined for the run itself, which may go on. */
  readonly last: number | undefined;
}

export const positionOf = (seq: number, offset: number): number => seq + offset;
export const seqOf = (position: number, offset: number): number => position - offset;

/**
 * The parts of a run's line, oldest first. `runs` is the run itself, its base, that one's base and so on. Throws when one
 * is missing or they do not meet: events would be left out, or come twice.
 */
export function segmentsOf(runs: readonly LineRun[]): Segment[] {
  const segments: Segment[] = [];
  let last: number | undefined;
  for (const [i, { runId, offset, base }] of runs.entries()) {
    segments.push({ runId, offset, last });
    const next = runs[i + 1];
    if (base === undefined) {
      if (offset !== 0 || next !== undefined) throw new Error(`run ${runId} names no base, and ${offset} events come before it`);
      break;
    }
    if (next?.runId !== base.runId) throw new Error(`the run that run ${runId} begins with, ${base.runId}, is not there`);
    if (positionOf(base.seq, next.offset) !== offset) throw new Error(`run ${runId} begins behind position ${offset}, its base ends at ${positionOf(base.seq, next.offset)}`);
    last = base.seq;
  }
  return segments.toReversed();
}

/** The own seqs of a segment whose positions lie between `after` and `below`, both exclusive; undefined when there are none. */
export function within(
  { offset, last }: Segment,
  { after, below }: { readonly after: number; readonly below: number },
): { readonly after: number; readonly below: number } | undefined {
  const from = Math.max(0, seqOf(after, offset));
  const to = Math.min(seqOf(below, offset), last === undefined ? Number.POSITIVE_INFINITY : last + 1);
  return to - from > 1 ? { after: from, below: to } : undefined;
}
