/** The API's streams in a process of their own: `DATABASE_URL`; says its port. */
import Fastify from "fastify";
import { registerEventStream } from "../../../src/http/stream/route.ts";
import { createPool } from "../../../src/store/pool.ts";

const db = createPool({ connectionString: process.env["DATABASE_URL"] ?? "", max: 4, applicationName: "bench api" });
const app = Fastify();
const print = (fields: object, message: string): void => console.error(message, fields);
const stream = registerEventStream(app, { db, named: (text) => text, log: { debug: () => {}, info: () => {}, warn: print, error: print } });
app.get<{ Params: { id: string } }>("/v1/runs/:id/events", (request, reply) => stream.open(request, reply, { runId: request.params.id }));
const url = await app.listen({ host: "127.0.0.1", port: 0 });
process.on("disconnect", () => process.exit());
process.on("message", () => process.send?.({ cpuMs: process.cpuUsage().user / 1_000 + process.cpuUsage().system / 1_000 }));
process.send?.({ url });
