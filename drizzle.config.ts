import { defineConfig } from "drizzle-kit";

export default defineConfig({
  dialect: "postgresql",
  schema: "./src/store/schema/*.ts",
  out: "./migrations",
  schemaFilter: ["capstan"],
  // The same bookkeeping table as src/store/migrate.ts uses.
  migrations: { schema: "capstan", table: "migrations" },
});
