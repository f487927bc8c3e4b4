import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";

/** What the guardian cleans up when it is left alone. Both are harmless when there is nothing left to clean. */
export type GuardedServer =
  | { readonly kind: "embedded"; readonly dir: string }
  | { readonly kind: "container"; readonly label: string; readonly value: string; readonly docker: object };

export interface Guardian {
  /** Sends the guardian away, after a clean-up in the ordinary way. */
  dismiss(): void;
}

/**
 * Starts a small process that outlives us only to clean up: a test run that is killed with SIGKILL (a CI job that
 * timed out, a crash test) would leave a server running for ever. It notices our end by the end of its input.
 * Started before the server, so that there is no moment in which a server exists without one. testcontainers has its
 * own container for this, which needs an image that cannot be pulled everywhere, and knows nothing of embedded servers.
 */
export function startGuardian(server: GuardedServer): Guardian {
  // After the build the neighbour is a .js file, and paths outside of import statements are not rewritten.
  const extension = import.meta.url.endsWith(".ts") ? "ts" : "js";
  const program = fileURLToPath(new URL(`./guardian-process.${extension}`, import.meta.url));
  const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", program, JSON.stringify(server)], {
    cwd: "/",
    // A group of its own: Ctrl-C in the terminal ends us, and then it has work to do.
    detached: true,
    stdio: ["pipe", "ignore", "ignore"],
  });
  child.on("error", () => {});
  child.stdin.on("error", () => {});
  child.unref();
  // Sockets can be unreferenced, though the type is only that of a stream.
  if ("unref" in child.stdin && typeof child.stdin.unref === "function") child.stdin.unref();
  return {
    dismiss() {
      child.kill("SIGKILL");
    },
  };
}
