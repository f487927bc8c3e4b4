-- Redaction of what comes through SQL (docs/security.md), and webhooks with their outbox (docs/webhooks.md).
-- Rules are read from capstan.redaction_rules; while it is empty nothing is looked through.
CREATE FUNCTION capstan.is_card(digits text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  select digits ~ '^(4|5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720|3[04-9]|6[0245])' and (
    select sum(case when (length(digits) - i) % 2 = 0 then d else d * 2 - case when d > 4 then 9 else 0 end end) % 10 = 0
    from generate_series(1, length(digits)) i cross join lateral (select substr(digits, i, 1)::int as d) c)
$$;
--> statement-breakpoint
CREATE FUNCTION capstan.is_account(iban text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  select string_agg(case when c ~ '\d' then c else (ascii(c) - 55)::text end, '' order by n)::numeric % 97 = 1
  from string_to_table(substr(iban, 5) || left(iban, 4), null) with ordinality t(c, n)
$$;
--> statement-breakpoint
-- Groups of digits that together are a card's number, as src/domain/redact/checked-numbers.ts finds them.
CREATE FUNCTION capstan.redacted_cards(value text, replacement text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
declare
  v_run text;
  v_groups text[];
  v_at int;
  v_digits text;
  v_found int;
  v_first int;
  v_out text := value;
begin
  for v_run in select m[1] from regexp_matches(value, '(?<![A-Za-z0-9-])(\d{3,}(?:[ -]\d{3,})*)(?![A-Za-z0-9-])', 'g') m where length(m[1]) >= 13 loop
    v_groups := regexp_split_to_array(v_run, '[ -]');
    v_at := 1;
    v_first := 1;
    while v_first <= cardinality(v_groups) loop
      v_digits := '';
      v_found := null;
      for i in v_first..cardinality(v_groups) loop
        v_digits := v_digits || v_groups[i];
        exit when length(v_digits) > 19;
        if length(v_digits) >= 13 and capstan.is_card(v_digits) then v_found := i; end if;
      end loop;
      if v_found is not null then
        v_out := replace(v_out, substr(v_run, v_at, (select sum(length(g) + 1)::int - 1 from unnest(v_groups[v_first:v_found]) g)), replacement);
      end if;
      for i in v_first..coalesce(v_found, v_first) loop v_at := v_at + length(v_groups[i]) + 1; end loop;
      v_first := coalesce(v_found, v_first) + 1;
    end loop;
  end loop;
  return v_out;
end $$;
--> statement-breakpoint
CREATE FUNCTION capstan.redacted_accounts(value text, replacement text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
declare
  v_run text;
  v_out text := value;
  v_candidate text;
begin
  for v_run in select m[1] from regexp_matches(value, '(?<![A-Za-z0-9])([A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30})', 'g') m loop
    for v_length in reverse length(v_run)..15 loop
      v_candidate := left(v_run, v_length);
      continue when v_candidate ~ ' $' or substr(v_run, v_length + 1, 1) ~ '[A-Za-z0-9]' or not capstan.is_account(replace(v_candidate, ' ', ''));
      v_out := replace(v_out, v_candidate, replacement);
      exit;
    end loop;
  end loop;
  return v_out;
end $$;
--> statement-breakpoint
CREATE FUNCTION capstan.redacted_text(value text) RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
#variable_conflict use_column
declare
  v_rule capstan.redaction_rules;
  v_out text := redacted_text.value;
begin
  if length(v_out) < 6 then return v_out; end if;
  for v_rule in select * from capstan.redaction_rules order by n, name loop
    v_out := case v_rule.kind
      when 'pattern' then regexp_replace(v_out, v_rule.pattern, v_rule.replacement, 'g')
      when 'card' then capstan.redacted_cards(v_out, v_rule.replacement)
      else capstan.redacted_accounts(v_out, v_rule.replacement) end;
  end loop;
  return v_out;
end $$;
--> statement-breakpoint
-- Strings, members' names, and numbers as long as a card's. A reference to a blob keeps what names it.
CREATE FUNCTION capstan.redacted_json(value jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
#variable_conflict use_column
begin
  case jsonb_typeof(redacted_json.value)
    when 'string' then return to_jsonb(capstan.redacted_text(redacted_json.value #>> '{}'));
    when 'number' then
      return case when redacted_json.value::text ~ '^-?\d{9,}$' and capstan.redacted_text(redacted_json.value::text) <> redacted_json.value::text
        then to_jsonb(capstan.redacted_text(redacted_json.value::text)) else redacted_json.value end;
    when 'array' then
      return (select coalesce(jsonb_agg(capstan.redacted_json(e.item) order by e.i), '[]') from jsonb_array_elements(redacted_json.value) with ordinality e(item, i));
    when 'object' then
      if redacted_json.value ->> 'type' = 'file' and redacted_json.value ->> 'sha256' ~ '^[0-9a-f]{64}$' then
        return redacted_json.value || case when redacted_json.value ? 'filename' then jsonb_build_object('filename', capstan.redacted_json(redacted_json.value -> 'filename')) else '{}' end;
      end if;
      return (select coalesce(jsonb_object_agg(capstan.redacted_text(e.key), capstan.redacted_json(e.value)), '{}') from jsonb_each(redacted_json.value) e);
    else return redacted_json.value;
  end case;
end $$;
--> statement-breakpoint
-- Null stays null. What comes from another database of ours by import stays to the byte.
CREATE FUNCTION capstan.redacted(value jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
begin
  if value is null or (coalesce(current_setting('capstan_import.running', true), '') = 'on' and has_table_privilege(session_user, 'capstan.runs', 'insert')) or not exists (select from capstan.redaction_rules) then return value; end if;
  return capstan.redacted_json(value);
end $$;
--> statement-breakpoint
-- Events that SQL functions write with words of their callers; workers' own are redacted before they come here. The run's row
-- is the transaction's already.
CREATE FUNCTION capstan.redact_event() RETURNS trigger LANGUAGE plpgsql AS $$
declare
  v_field text := case new.type when 'run.created' then 'input' else 'reason' end;
  v_given jsonb := new.payload -> v_field;
  v_redacted jsonb := capstan.redacted(v_given);
  v_size int := new.size;
begin
  if v_redacted is not distinct from v_given then return new; end if;
  new.payload := jsonb_set(new.payload::jsonb, array[v_field], v_redacted);
  new.size := octet_length(new.payload::text);
  update capstan.runs r set journal_bytes = r.journal_bytes + new.size - v_size where r.id = new.run_id;
  return new;
end $$;
--> statement-breakpoint
CREATE TRIGGER events_redact BEFORE INSERT ON capstan.events FOR EACH ROW
  WHEN (new.type in ('run.created', 'run.cancelled') and new.payload is not null) EXECUTE FUNCTION capstan.redact_event();
--> statement-breakpoint
CREATE FUNCTION capstan.redact_payload() RETURNS trigger LANGUAGE plpgsql AS $$
begin
  new.payload := capstan.redacted(new.payload);
  return new;
end $$;
--> statement-breakpoint
CREATE TRIGGER inbox_redact BEFORE INSERT ON capstan.inbox FOR EACH ROW WHEN (new.kind <> 'compaction') EXECUTE FUNCTION capstan.redact_payload();
--> statement-breakpoint
CREATE TRIGGER signals_redact BEFORE INSERT ON capstan.signals FOR EACH ROW EXECUTE FUNCTION capstan.redact_payload();
--> statement-breakpoint
CREATE FUNCTION capstan.redact_answer() RETURNS trigger LANGUAGE plpgsql AS $$
begin
  new.answer := capstan.redacted(new.answer);
  return new;
end $$;
--> statement-breakpoint
CREATE TRIGGER waits_redact BEFORE UPDATE OF answer ON capstan.waits FOR EACH ROW WHEN (new.answer is not null) EXECUTE FUNCTION capstan.redact_answer();
--> statement-breakpoint
CREATE FUNCTION capstan.redact_schedule() RETURNS trigger LANGUAGE plpgsql AS $$
begin
  new.input := capstan.redacted(new.input);
  new.options := capstan.redacted(new.options);
  return new;
end $$;
--> statement-breakpoint
CREATE TRIGGER schedules_redact BEFORE INSERT OR UPDATE OF input, options ON capstan.schedules FOR EACH ROW EXECUTE FUNCTION capstan.redact_schedule();
--> statement-breakpoint
CREATE FUNCTION capstan.redact_metadata() RETURNS trigger LANGUAGE plpgsql AS $$
begin
  new.metadata := capstan.redacted(new.metadata);
  return new;
end $$;
--> statement-breakpoint
CREATE TRIGGER runs_redact BEFORE INSERT OR UPDATE OF metadata ON capstan.runs FOR EACH ROW WHEN (new.metadata is not null) EXECUTE FUNCTION capstan.redact_metadata();
--> statement-breakpoint
CREATE TRIGGER conversations_redact BEFORE INSERT OR UPDATE OF metadata ON capstan.conversations FOR EACH ROW WHEN (new.metadata is not null) EXECUTE FUNCTION capstan.redact_metadata();
--> statement-breakpoint
-- Webhooks. A delivery is written in the transaction of the event that it tells of, and only when a webhook wants it: its id is
-- what receivers know a repeated one by. The body has ids and the state; what the run said only where a webhook asks for it.
CREATE FUNCTION capstan.webhook_body(run capstan.runs, event text, at timestamptz, said jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
  select jsonb_build_object('type', event, 'timestamp', to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'data',
    jsonb_strip_nulls(jsonb_build_object('run_id', run.id, 'tenant', run.tenant, 'agent', run.agent, 'state', run.state, 'wait_reason', run.wait_reason,
      'error_code', run.error_code, 'turn', run.turn, 'conversation_id', run.conversation_id, 'parent_run_id', run.parent_run_id, 'subject', run.subject,
      'labels', to_jsonb(run.labels), 'created_at', run.created_at, 'finished_at', run.finished_at)) || coalesce(said, '{}'))
$$;
--> statement-breakpoint
CREATE FUNCTION capstan.tell_webhooks() RETURNS trigger LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare
  v_run capstan.runs;
  v_event text := case new.type when 'run.parked' then 'run.waiting' else new.type end;
begin
  if not exists (select from capstan.webhooks w where w.disabled_at is null) or (coalesce(current_setting('capstan_import.running', true), '') = 'on' and has_table_privilege(session_user, 'capstan.runs', 'insert')) then return null; end if;
  select * into v_run from capstan.runs r where r.id = new.run_id;
  insert into capstan.webhook_deliveries (id, webhook_id, tenant, run_id, event, body, at, next_at)
    select capstan.uuid_v7(), w.id, w.tenant, v_run.id, v_event,
      capstan.webhook_body(v_run, v_event, new.at, case
        when not w.content or new.payload is null then null
        when octet_length(new.payload::text) > 262144 then '{"content_omitted": "too large"}'
        else jsonb_strip_nulls(jsonb_build_object('output', new.payload::jsonb -> 'output', 'error', new.payload::jsonb -> 'error', 'reason', case when new.type = 'run.cancelled' then new.payload::jsonb -> 'reason' end)) end),
      new.at, new.at
    from capstan.webhooks w
    where w.tenant = v_run.tenant and w.disabled_at is null and v_event = any(w.events) and (w.agent is null or w.agent = v_run.agent);
  return null;
end $$;
--> statement-breakpoint
CREATE TRIGGER events_webhooks AFTER INSERT ON capstan.events FOR EACH ROW
  WHEN (new.type in ('run.completed', 'run.failed', 'run.cancelled')) EXECUTE FUNCTION capstan.tell_webhooks();
--> statement-breakpoint
-- Only for what a person ends. A payload that is sealed says nothing here: its run's row is what tells.
CREATE TRIGGER events_webhooks_waiting AFTER INSERT ON capstan.events FOR EACH ROW
  WHEN (new.type = 'run.parked' and coalesce(new.payload ->> 'reason', 'approval') in ('approval', 'input', 'crash_loop', 'agent_missing', 'context_exhausted'))
  EXECUTE FUNCTION capstan.tell_webhooks();
--> statement-breakpoint
-- What people did stays as it was written, like the journal.
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON capstan.audit_log FOR EACH ROW EXECUTE FUNCTION capstan.refuse_rewrite();
--> statement-breakpoint
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON capstan.audit_log FOR EACH STATEMENT EXECUTE FUNCTION capstan.refuse_rewrite();
--> statement-breakpoint
-- What people decide, whichever way it comes.
CREATE FUNCTION capstan.audit_answer() RETURNS trigger LANGUAGE plpgsql AS $$
begin
  insert into capstan.audit_log (tenant, actor, action, target, detail)
    values (new.tenant, coalesce(new.answered_by, session_user),
      case when new.kind = 'approval' then 'approval.' || coalesce(new.answer ->> 'decision', 'deny') when new.answer -> 'declined' = 'true' then 'question.decline' else 'question.answer' end,
      new.run_id::text, jsonb_build_object('wait_id', new.id, 'name', new.name));
  return null;
end $$;
--> statement-breakpoint
CREATE TRIGGER waits_audit AFTER UPDATE OF answered_at ON capstan.waits FOR EACH ROW
  WHEN (old.answered_at is null and new.answered_at is not null and new.kind in ('approval', 'question')) EXECUTE FUNCTION capstan.audit_answer();
--> statement-breakpoint
CREATE FUNCTION capstan.audit_promotion() RETURNS trigger LANGUAGE plpgsql AS $$
begin
  insert into capstan.audit_log (tenant, actor, action, target, detail) values ('*', coalesce(new.actor, session_user), 'agent.promote', new.name, jsonb_build_object('sha', new.sha));
  return null;
end $$;
--> statement-breakpoint
CREATE TRIGGER agent_promotions_audit AFTER INSERT ON capstan.agent_promotions FOR EACH ROW EXECUTE FUNCTION capstan.audit_promotion();
--> statement-breakpoint
-- Contents that an input names belong to its run from now on, also when they were uploaded before there was one. The lock is
-- the one of src/store/blobs.ts: nobody deletes them meanwhile.
CREATE FUNCTION capstan.keep_blobs(run_id uuid, tenant text, input jsonb) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
declare v_named text[];
begin
  select array_agg(distinct p.part ->> 'sha256') into v_named from jsonb_array_elements(keep_blobs.input) p(part) where p.part ->> 'type' = 'file' and p.part ? 'sha256';
  if v_named is null then return; end if;
  perform pg_advisory_xact_lock_shared(1667330146, hashtext(keep_blobs.tenant));
  insert into capstan.blob_refs (tenant, sha256, run_id) select b.tenant, b.sha256, keep_blobs.run_id from capstan.blobs b where b.tenant = keep_blobs.tenant and b.sha256 = any(v_named) on conflict do nothing;
end $$;
--> statement-breakpoint
CREATE FUNCTION capstan.keep_input_blobs() RETURNS trigger LANGUAGE plpgsql AS $$
begin
  if tg_table_name = 'inbox' then
    perform capstan.keep_blobs(new.run_id, r.tenant, new.payload) from capstan.runs r where r.id = new.run_id;
  else
    perform capstan.keep_blobs(new.run_id, r.tenant, (new.payload -> 'input')::jsonb) from capstan.runs r where r.id = new.run_id;
  end if;
  return null;
end $$;
--> statement-breakpoint
CREATE TRIGGER events_keep_blobs AFTER INSERT ON capstan.events FOR EACH ROW
  WHEN (new.type = 'run.created' and json_typeof(new.payload -> 'input') = 'array') EXECUTE FUNCTION capstan.keep_input_blobs();
--> statement-breakpoint
CREATE TRIGGER inbox_keep_blobs AFTER INSERT ON capstan.inbox FOR EACH ROW
  WHEN (new.kind = 'input' and jsonb_typeof(new.payload) = 'array') EXECUTE FUNCTION capstan.keep_input_blobs();
