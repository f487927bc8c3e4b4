-- A shop's own table and the runs about it, as an application role that reads no journals (docs/sql.md#rights):
--
--   psql "$SHOP_DATABASE_URL" --set ON_ERROR_STOP=1 --file examples/psql/orders.sql
--
begin;

create temp table orders (id text primary key, note text not null, run_id uuid);
insert into orders (id, note) values ('21', 'second floor'), ('22', 'ring twice'), ('23', 'fragile');

-- All of them or none, in one call; the runs exist if and only if the orders do.
with enqueued as (
  select o.ids, capstan.enqueue_runs(o.runs) as run_ids from (
    select array_agg(id order by id) as ids,
      jsonb_agg(jsonb_build_object(
        'agent', 'clerk',
        'input', jsonb_build_object('question', 'Where is order ' || id || '?'),
        'tenant', 'shop',
        'idempotency_key', 'order ' || id,
        'labels', jsonb_build_array('orders'),
        'budget', jsonb_build_object('hard', jsonb_build_object('tokens', 20000), 'wrap_up', true)
      ) order by id) as runs
    from orders) o
)
update orders set run_id = e.run_id from (select unnest(ids) as id, unnest(run_ids) as run_id from enqueued) e where orders.id = e.id;

commit;

select id, capstan.run_status(run_id) ->> 'state' as state, capstan.run_status(run_id) #>> '{budget,hard,tokens}' as tokens from orders order by id;

-- More to say about one of them, and one that nobody needs any more.
select capstan.send(run_id, '"The customer called again."') is not null as sent from orders where id = '21';
select capstan.cancel_run(run_id, 'the order was taken back') as cancelled from orders where id = '23';
select id, capstan.run_status(run_id) ->> 'state' as state from orders order by id;
