/** The run exists if and only if the order does: both are written by one transaction. Needs no worker code. */
import pg from "pg";
import { createClient } from "../src/client/index.ts"; // in your project: from "capstan/client"

const pool = new pg.Pool({ connectionString: process.env["DATABASE_URL"] });
pool.on("error", (error) => console.error("an idle connection was lost", error.message));
const client = createClient({ pool });

const tx = await pool.connect();
try {
  await tx.query("begin");
  await tx.query("create table if not exists orders (id text primary key, note text not null)");
  await tx.query("insert into orders (id, note) values ($1, $2) on conflict do nothing", ["7", "left at the door"]);
  const run = await client.enqueue("clerk", { question: "Where is order 7?" }, { tx, idempotencyKey: "order 7" });
  await tx.query("commit");
  console.log(run.id);
} catch (error) {
  await tx.query("rollback");
  throw error;
} finally {
  tx.release();
}
await client.close();
await pool.end();
