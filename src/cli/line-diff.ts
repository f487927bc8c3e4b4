/** Two texts line by line, for people: what went, what came, and a little of what is around it. */

export interface DiffLine {
  readonly mark: " " | "-" | "+";
  readonly text: string;
}

/** A table of more cells than this costs seconds: such texts are shown as wholly replaced between what they share at both ends. */
const MAX_CELLS = 4_000_000;

/** Shortest by longest common subsequence; of equal ones that which removes first. */
export function diffLines(before: string, after: string): DiffLine[] {
  const [old, now] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start++;
  let end = 0;
  while (end < old.length - start && end < now.length - start && old.at(-1 - end) === now.at(-1 - end)) end++;
  const kept = (text: string): DiffLine => ({ mark: " ", text });
  const middle = changedLines(old.slice(start, old.length - end), now.slice(start, now.length - end));
  return [...old.slice(0, start).map(kept), ...middle, ...old.slice(old.length - end).map(kept)];
}

function changedLines(old: readonly string[], now: readonly string[]): DiffLine[] {
  const width = now.length + 1;
  if ((old.length + 1) * width > MAX_CELLS) return [...old.map((text): DiffLine => ({ mark: "-", text })), ...now.map((text): DiffLine => ({ mark: "+", text }))];
  // common[i][j]: how many lines the ends from old[i] and now[j] on have in common.
  const common = new Uint32Array((old.length + 1) * width);
  const at = (i: number, j: number): number => common[i * width + j] as number;
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) common[i * width + j] = old[i] === now[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
  }
  const lines: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      lines.push({ mark: " ", text: old[i] as string });
      i++;
      j++;
    } else if (j === now.length || (i < old.length && at(i + 1, j) >= at(i, j + 1))) lines.push({ mark: "-", text: old[i++] as string });
    else lines.push({ mark: "+", text: now[j++] as string });
  }
  return lines;
}

/** The changed lines with `context` unchanged ones around them; what is left out is an ellipsis. */
export function hunks(lines: readonly DiffLine[], context = 2): string[] {
  const isNear = (index: number): boolean => lines.slice(Math.max(0, index - context), index + context + 1).some(({ mark }) => mark !== " ");
  return lines.flatMap(({ mark, text }, i) => {
    if (isNear(i)) return [`${mark} ${text}`];
    return i === 0 || isNear(i - 1) ? ["  …"] : [];
  });
}
