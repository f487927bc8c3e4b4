import { createRequire } from "node:module";
import { TestPostgresUnavailableError } from "./test-server.ts";

export type Testcontainers = typeof import("testcontainers");
type Dockerode = Awaited<ReturnType<Testcontainers["getContainerRuntimeClient"]>>["container"]["dockerode"];

/** testcontainers is the user's to install: only those who test in containers need its eighty packages. */
export async function loadTestcontainers(): Promise<Testcontainers> {
  try {
    return await import("testcontainers");
  } catch (error) {
    throw new TestPostgresUnavailableError("the package testcontainers is not installed (npm i -D testcontainers)", {
      cause: error,
    });
  }
}

/** Where the engine listens, as a plain object that another process can connect with. */
export function describeConnection(dockerode: Dockerode): object {
  const { socketPath, host, port, protocol } = dockerode.modem as unknown as Record<string, unknown>;
  return socketPath === undefined ? { host, port, protocol } : { socketPath };
}

/** Removes containers with their volumes, running or not. */
export async function removeLabelledContainers(connection: object, label: string, value: string): Promise<void> {
  // The client library belongs to testcontainers and is not ours to import by name.
  const requireThere = createRequire(createRequire(import.meta.url).resolve("testcontainers"));
  const Docker = requireThere("dockerode") as new (options: object) => Dockerode;
  const docker = new Docker(connection);
  const found = await docker.listContainers({ all: true, filters: { label: [`${label}=${value}`] } });
  for (const { Id } of found) await docker.getContainer(Id).remove({ force: true, v: true });
}
