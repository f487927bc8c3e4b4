-- What waits for a person.
select w.id, w.run_id, w.agent, w.name, w.detail, w.requested_at, w.expires_at
from capstan.waits w
where w.kind in ('approval', 'question') and w.answered_at is null and w.settled_at is null
order by w.id;

-- A rule may decide too: refunds up to 50. The run goes on when this transaction commits.
select w.id, capstan.decide(w.id, 'approve', reason => 'up to 50 is fine', actor => 'rule 12')
from capstan.waits w
where w.kind = 'approval' and w.name = 'refund' and (w.detail -> 'input' ->> 'amount')::numeric <= 50
  and w.answered_at is null and w.settled_at is null and (w.expires_at is null or w.expires_at > capstan.now());
