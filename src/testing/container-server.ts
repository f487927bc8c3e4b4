import { randomUUID } from "node:crypto";
import { findFreePort } from "../embedded/free-port.ts";
import { describeConnection, loadTestcontainers, removeLabelledContainers, type Testcontainers } from "./docker.ts";
import { isConnectionError } from "../store/pg-errors.ts";
import { startGuardian } from "./guardian.ts";
import { readTestServerVersion, TestPostgresUnavailableError, type TestServer } from "./test-server.ts";

const preferredImage = "postgres:17-alpine";

/** What test/postgres-image builds where nothing can be pulled. */
const localImage = "capstan-postgres:15";

/** A pull that takes longer on its own is more likely a registry that cannot be reached than a slow line. */
const pullTimeoutMs = 120_000;

const label = "dev.capstan.test-server";
const password = "capstan-test";

type Client = Awaited<ReturnType<Testcontainers["getContainerRuntimeClient"]>>;

/** Throws `TEST_POSTGRES_UNAVAILABLE` when no engine answers, no image can be had or testcontainers is not installed. */
export async function startContainerServer(): Promise<TestServer> {
  const testcontainers = await loadTestcontainers();
  const client = await connectToEngine(testcontainers);
  const image = await chooseImage(testcontainers, client);
  // Its own cleaner is a second image to pull; the guardian does the same for both kinds of server.
  process.env["TESTCONTAINERS_RYUK_DISABLED"] ??= "true";
  const docker = describeConnection(client.container.dockerode);
  const value = randomUUID();
  const guardian = startGuardian({ kind: "container", label, value, docker });
  const removeAll = async () => {
    await removeLabelledContainers(docker, label, value);
    guardian.dismiss();
  };
  try {
    const container = await startContainer(testcontainers, image, value);
    // Two addresses behind one name would make every refused connection a pair of errors.
    const host = container.getHost() === "localhost" ? "127.0.0.1" : container.getHost();
    const url = `postgres://postgres:${password}@${host}:${container.getMappedPort(5432)}/postgres`;
    const version = await untilAccepting(url);
    return {
      url,
      describe: `container ${image} (${version})`,
      async restart(mode) {
        // Signalled by hand: the engine's own restart knows no immediate mode, and testcontainers gives the fast one
        // no time before SIGKILL.
        const raw = client.container.getById(container.getId());
        const ended = raw.wait();
        await raw.kill({ signal: mode === "fast" ? "SIGINT" : "SIGQUIT" });
        await ended;
        await container.restart();
        await untilAccepting(url);
      },
      stop: removeAll,
    };
  } catch (error) {
    await removeAll();
    throw error;
  }
}

const UP_WITHIN_MS = 120_000;

/** By address: the images' first, temporary server listens on the socket only, and may have said that it is ready. */
async function untilAccepting(url: string): Promise<string> {
  const until = performance.now() + UP_WITHIN_MS;
  for (;;) {
    try {
      return await readTestServerVersion(url);
    } catch (error) {
      if (!isConnectionError(error) || performance.now() > until) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}

async function startContainer(testcontainers: Testcontainers, image: string, value: string) {
  const { GenericContainer, Wait } = testcontainers;
  for (let attempt = 1; ; attempt++) {
    // A port fixed by us rather than by the engine, which picks a new one at each restart: pools must find it again.
    const port = await findFreePort();
    const container = new GenericContainer(image)
      .withLabels({ [label]: value })
      .withEnvironment({ POSTGRES_PASSWORD: password })
      .withExposedPorts({ container: 5432, host: port })
      .withCommand(["postgres", "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=200"])
      // No health check, and nothing else that is executed inside: Postgres is process 1 there. A check that the engine
      // gives up on a busy machine leaves a child behind, and Postgres takes the end of a child that it does not know
      // for a crash of its own and restarts, again and again. From here on the server is asked from outside.
      .withWaitStrategy(Wait.forLogMessage("ready to accept connections"))
      .withStartupTimeout(120_000);
    try {
      return await container.start();
    } catch (error) {
      const isPortTaken = /port is already allocated|address already in use/.test(String(error));
      if (!isPortTaken || attempt >= 5) throw error;
    }
  }
}

async function connectToEngine(testcontainers: Testcontainers): Promise<Client> {
  try {
    return await testcontainers.getContainerRuntimeClient();
  } catch (error) {
    throw new TestPostgresUnavailableError("no container engine answers", { cause: error });
  }
}

async function chooseImage(testcontainers: Testcontainers, client: Client): Promise<string> {
  const named = process.env["CAPSTAN_TEST_POSTGRES_IMAGE"];
  const isThere = (image: string) => client.image.exists(testcontainers.ImageName.fromString(image));
  for (const image of named ? [named] : [preferredImage, localImage]) {
    if (await isThere(image)) return image;
  }
  const wanted = named ?? preferredImage;
  const isPulled = await pull(testcontainers, client, wanted);
  // An unreachable registry ends the stream of messages like a finished pull does, so look for the image itself.
  if (isPulled === true && (await isThere(wanted))) return wanted;
  const reason = isPulled instanceof Error ? ` (${isPulled.message})` : "";
  throw new TestPostgresUnavailableError(`the image ${wanted} is not here and cannot be pulled${reason}`);
}

async function pull(testcontainers: Testcontainers, client: Client, image: string): Promise<true | Error> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<Error>((resolve) => {
    timer = setTimeout(() => resolve(new Error(`no end after ${pullTimeoutMs / 1000} s`)), pullTimeoutMs);
  });
  const pulled = client.image.pull(testcontainers.ImageName.fromString(image)).then(
    () => true as const,
    (error: unknown) => (error instanceof Error ? error : new Error(String(error))),
  );
  try {
    return await Promise.race([pulled, timeout]);
  } finally {
    clearTimeout(timer);
  }
}
