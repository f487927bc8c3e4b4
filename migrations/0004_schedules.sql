-- Filled by later parts of this change.
select 1
