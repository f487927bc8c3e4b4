export {
  deleteEmbeddedPostgres,
  embeddedPostgresStatus,
  startEmbeddedPostgres,
  stopEmbeddedPostgres,
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
} from "./embedded-postgres.ts";
