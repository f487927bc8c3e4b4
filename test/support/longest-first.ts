import { BaseSequencer, type TestSpecification } from "vitest/node";

/** Minutes each with CAPSTAN_CHAOS=full: begun last, one of them would run on alone. */
const LONGEST = ["crash-matrix", "compaction-matrix", "interleavings"];

/** Vitest knows how long files take from their last run; a fresh clone has had none. */
export default class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    // oxlint-disable-next-line unicorn/no-array-sort -- vitest's own name for it
    const sorted = await super.sort(files);
    const rank = ({ moduleId }: TestSpecification): number => {
      const place = LONGEST.findIndex((name) => moduleId.endsWith(`/${name}.test.ts`));
      return place === -1 ? LONGEST.length : place;
    };
    return sorted.toSorted((a, b) => rank(a) - rank(b));
  }
}
