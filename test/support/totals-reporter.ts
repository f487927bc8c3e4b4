import { writeSync } from "node:fs";
import type { Reporter, SerializedError, TestModule, Vitest } from "vitest/node";

export interface Totals {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}

/**
 * Prints `N passed, N failed` as the very last line of a run, for people who scroll and programs that count. A file or
 * suite that fails outside of any test (an import that throws, a failing hook) is one failure more, and so is an error
 * that nobody caught: none of them is a failed test, and all of them fail the run.
 */
export default class TotalsReporter implements Reporter {
  private watching = false;

  onInit(vitest: Vitest): void {
    this.watching = vitest.config.watch;
  }

  onTestRunEnd(modules: readonly TestModule[], unhandledErrors: readonly SerializedError[]): void {
    const line = `${failedLines(modules, unhandledErrors)}${flakyLines(modules)}${formatTotals(countTotals(modules, unhandledErrors.length))}\n`;
    // The other reporters and the teardown of the servers still print after this; at exit nobody does.
    if (this.watching) process.stdout.write(line);
    else process.once("exit", () => writeSync(1, line));
  }
}

export function formatTotals({ passed, failed, skipped }: Totals): string {
  return `${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ""}`;
}

/** Named once more beside the totals: a long log is often cut to its end. */
function failedLines(modules: readonly TestModule[], unhandledErrors: readonly SerializedError[]): string {
  const told = (name: string, errors: readonly { readonly message?: string }[]): string =>
    errors.length === 0 ? "" : `failed: ${name}: ${(errors[0]?.message ?? "").replaceAll(/\s+/g, " ").slice(0, 500)}\n`;
  const ofModules = modules.flatMap((module) => [
    told(module.relativeModuleId, module.errors()),
    ...[...module.children.allSuites()].map((suite) => told(`${module.relativeModuleId} > ${suite.fullName}`, suite.errors())),
    ...[...module.children.allTests()].map((test) => {
      const { state, errors } = test.result();
      return state === "failed" ? told(`${module.relativeModuleId} > ${test.fullName}`, errors) : "";
    }),
  ]);
  return [...ofModules, ...unhandledErrors.map((error) => told("an error that nobody caught", [error]))].join("");
}

/** CAPSTAN_TEST_RETRY makes a failed test once more; one that passes then is no failure, and is not passed over either. */
function flakyLines(modules: readonly TestModule[]): string {
  const flaky = modules.flatMap((module) =>
    [...module.children.allTests()].filter((test) => test.diagnostic()?.flaky === true).map((test) => `${module.relativeModuleId} > ${test.fullName}`),
  );
  return flaky.map((name) => `passed only when it was made again: ${name}\n`).join("");
}

function countTotals(modules: readonly TestModule[], unhandledErrors: number): Totals {
  let passed = 0;
  let failed = unhandledErrors;
  let skipped = 0;
  for (const module of modules) {
    failed += module.errors().length > 0 ? 1 : 0;
    for (const suite of module.children.allSuites()) failed += suite.errors().length > 0 ? 1 : 0;
    for (const test of module.children.allTests()) {
      const { state } = test.result();
      if (state === "passed") passed++;
      else if (state === "failed") failed++;
      else skipped++;
    }
  }
  return { passed, failed, skipped };
}
