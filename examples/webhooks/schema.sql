-- Times are milliseconds since 1970.

create table if not exists endpoints (
	id          text primary key,
	url         text not null,
	secrets     text not null,            -- each whsec_ and base64, with a space between them
	disabled    text not null default '', -- why, if it is
	failures    integer not null default 0, -- runs that failed in a row
	failing     integer not null default 0, -- when the first of them did
	rests_until integer not null default 0  -- nothing is sent to it before
);

create table if not exists messages (
	id      text primary key,
	payload blob not null,
	created integer not null
);

create table if not exists deliveries (
	id       integer primary key,
	message  text not null references messages(id),
	endpoint text not null references endpoints(id),
	state    text not null default 'pending', -- sending, delivered, dead
	runs     integer not null default 0,
	due      integer not null,
	outcome  text not null default '',        -- of the last run
	unique (message, endpoint)
);

create index if not exists deliveries_by_state on deliveries (state, endpoint, due);
