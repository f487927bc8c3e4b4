-- Enqueues a run from psql, in the same transaction as the row that it is about:
--
--   psql "$DATABASE_URL" --set ON_ERROR_STOP=1 --file examples/enqueue.sql
--
-- Any language does it alike: it is one function call inside a transaction of yours (docs/sql.md).
begin;

create table if not exists orders (id text primary key, note text not null);
insert into orders (id, note) values ('8', 'second floor') on conflict do nothing;

select capstan.enqueue_run(
  agent => 'clerk',
  input => jsonb_build_object('question', 'Where is order ' || id || '?'),
  idempotency_key => 'order ' || id,
  labels => array['orders']
) as run_id
from orders where id = '8';

commit;

-- The same key with the same input gives the same run; with another input it would be refused (SQLSTATE KC001).
select capstan.run_status(
  capstan.enqueue_run('clerk', jsonb_build_object('question', 'Where is order 8?'), idempotency_key => 'order 8')
) as status;
