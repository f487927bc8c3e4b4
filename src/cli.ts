#!/usr/bin/env node
import { enableCompileCache } from "node:module";

// Half of a short command's time would go into compiling; the cache must be on before anything else is loaded.
enableCompileCache();
const { runProgram } = await import("./cli/program.ts");

const exitCode = await runProgram(process.argv.slice(2));
// What was written last may still be on its way into a pipe, and a user's module may hold timers that would keep us.
await new Promise<void>((resolve) => process.stdout.write("", () => process.stderr.write("", () => resolve())));
process.exit(exitCode);
