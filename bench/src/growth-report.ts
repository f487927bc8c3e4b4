import type { Check } from "./growth-checks.ts";
import type { Length } from "./growth-length.ts";
import { table } from "./markdown.ts";
import { show } from "./statistics.ts";

/** What the layout that journals every request whole was measured to store on this workload. */
const wholeInputs: Readonly<Record<number, string>> = { 50: "3.5 MB", 107: "about 16 MB", 200: "54.9 MB", 450: "279 MB", 650: "RangeError" };

export function growthReport(lengths: readonly Length[], checks: readonly Check[], about: string): string {
  const grown = table(
    [
      "turns",
      "transcript",
      "events, heap + TOAST",
      "over the transcript",
      "events' indexes",
      "everything else",
      "all together",
      "all, B a turn",
      "largest value",
      "resume ms",
      "worker start to model call ms",
      "model calls",
      "a layout with whole inputs",
    ],
    lengths.map((length) => {
      const { turns, size, stored, largest } = length;
      const all = stored.events + stored.eventIndexes + stored.rest;
      return [
        turns.toLocaleString("en-US"),
        bytes(size.transcriptBytes),
        bytes(stored.events),
        (stored.events / size.transcriptBytes).toFixed(2),
        bytes(stored.eventIndexes),
        bytes(stored.rest),
        bytes(all),
        show(all / turns),
        bytes(largest.bytes),
        show(length.resumeMs),
        show(length.workerToCallMs),
        String(length.modelCalls),
        wholeInputs[turns] ?? (turns > 650 ? "RangeError" : "–"),
      ];
    }),
  );
  const checked = table(
    ["check", "asked", "measured", ""],
    checks.map(({ name, asked, measured, passed }) => [name, asked, measured, passed ? "pass" : "**fail**"]),
  );
  const compression = lengths.at(-1)?.compression;
  return [
    about,
    "Each length on a fresh database, sizes after VACUUM less those of the empty migrated one. Resume: a fresh process reads, folds, hashes and renders (median of three).",
    `TOAST compression: ${compression}.`,
    "",
    grown,
    "",
    checked,
  ].join("\n");
}

function bytes(n: number): string {
  if (n < 1_000) return `${n} B`;
  return n < 1_000_000 ? `${(n / 1_000).toFixed(1)} KB` : `${(n / 1_000_000).toFixed(2)} MB`;
}
