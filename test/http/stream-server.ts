/** An API of streams in a process of its own, to be stopped, killed and started again on the same port: DATABASE_URL, STREAM_PORT. */
import { createPool } from "../../src/store/pool.ts";
import { startStreamApp } from "./stream-app.ts";

const db = createPool({ connectionString: process.env["DATABASE_URL"] ?? "", max: 4, applicationName: "stream test" });
const { app, stream } = await startStreamApp(db, { port: Number(process.env["STREAM_PORT"]) });
process.on("message", (message) => {
  if (message === "size") process.send?.({ size: stream.size });
  if (message !== "stop") return;
  void app
    .close()
    .then(() => db.end())
    .then(() => process.disconnect());
});
process.on("disconnect", () => process.exit());
process.send?.("ready");
