export {
  deleteEmbeddedPostgres,
  embeddedPostgresStatus,
  startEmbeddedPostgres,
  stopEmbeddedPostgres,
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
  type EmbeddedPostgresStatus,
} from "./embedded-postgres.ts";
export { EmbeddedPostgresError, type EmbeddedPostgresErrorCode } from "./errors.ts";
