CREATE SCHEMA gridhand;
CREATE TABLE gridhand.allocations (
    number bigint NOT NULL,
    epoch bigint NOT NULL,
    owner character varying NOT NULL,
    holder character varying NOT NULL,
    node character varying NOT NULL,
    live_node character varying,
    amounts text NOT NULL,
    devices text NOT NULL,
    state character varying NOT NULL,
    lifetime character varying NOT NULL,
    deadline bigint,
    ttl bigint,
    "group" character varying,
    asked text,
    quality character varying,
    made_at bigint NOT NULL,
    CONSTRAINT amounts_not_negative CHECK ((amounts !~~ '%":-%'::text)),
    CONSTRAINT devices_not_negative CHECK ((devices !~~ '%":-%'::text)),
    CONSTRAINT live_while_open CHECK ((((live_node IS NOT NULL) AND ((live_node)::text = (node)::text) AND ((state)::text = ANY ((ARRAY['reserved'::character varying, 'active'::character varying])::text[]))) OR ((live_node IS NULL) AND ((state)::text = ANY ((ARRAY['released'::character varying, 'expired'::character varying, 'lost'::character varying])::text[]))))),
    CONSTRAINT ttl_positive CHECK ((ttl > 0)),
    CONSTRAINT what_lapses_has_a_deadline CHECK (((deadline IS NOT NULL) OR (((state)::text <> 'reserved'::text) AND ((lifetime)::text <> 'lease'::text))))
);
CREATE TABLE gridhand.checkpoint (
    kind character varying NOT NULL,
    subject character varying NOT NULL,
    "row" text NOT NULL,
    CONSTRAINT known_kind CHECK (((kind)::text = ANY ((ARRAY['node'::character varying, 'allocation'::character varying, 'job'::character varying])::text[])))
);
CREATE TABLE gridhand.events (
    number bigint NOT NULL,
    at bigint NOT NULL,
    kind character varying NOT NULL,
    subject character varying NOT NULL,
    owner character varying NOT NULL,
    op_id character varying,
    why text NOT NULL,
    "row" text
);
CREATE TABLE gridhand.gridhand_meta (
    id integer NOT NULL,
    schema_version integer NOT NULL,
    cluster_id character varying NOT NULL,
    epoch bigint NOT NULL,
    writer bigint NOT NULL,
    high_water_ms bigint NOT NULL,
    next_number bigint NOT NULL,
    checkpoint_through bigint NOT NULL,
    moved_to character varying,
    next_job bigint NOT NULL,
    CONSTRAINT marks_are_sane CHECK (((high_water_ms >= 0) AND (next_number >= 1) AND (next_job >= 1))),
    CONSTRAINT one_row CHECK ((id = 1)),
    CONSTRAINT writer_is_owner CHECK ((writer = epoch))
);
CREATE SEQUENCE gridhand.gridhand_meta_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE gridhand.gridhand_meta_id_seq OWNED BY gridhand.gridhand_meta.id;
CREATE TABLE gridhand.jobs (
    number bigint NOT NULL,
    id character varying NOT NULL,
    owner character varying NOT NULL,
    name character varying,
    state character varying NOT NULL,
    open integer,
    "array" character varying,
    array_index bigint,
    submitted bigint NOT NULL,
    ended bigint,
    reason character varying,
    not_before bigint,
    work text NOT NULL,
    request text,
    after text NOT NULL,
    attempts text NOT NULL,
    CONSTRAINT array_and_index CHECK ((("array" IS NULL) = (array_index IS NULL))),
    CONSTRAINT attempts_not_negative CHECK ((attempts !~~ '%":-%'::text)),
    CONSTRAINT ended_for_a_reason CHECK (((reason IS NULL) = (ended IS NULL))),
    CONSTRAINT id_tells_the_number CHECK (((id)::text =
CASE
    WHEN ("array" IS NULL) THEN ((number)::character varying)::text
    ELSE ((("array")::text || '_'::text) || ((array_index)::character varying)::text)
END)),
    CONSTRAINT only_the_queued_wait CHECK (((not_before IS NULL) OR ((state)::text = 'queued'::text))),
    CONSTRAINT open_until_ended CHECK ((((open IS NOT NULL) AND (open = 1) AND ((state)::text = ANY ((ARRAY['queued'::character varying, 'running'::character varying])::text[])) AND (ended IS NULL)) OR ((open IS NULL) AND ((state)::text = ANY ((ARRAY['succeeded'::character varying, 'failed'::character varying, 'cancelled'::character varying, 'lost'::character varying])::text[])) AND (ended IS NOT NULL)))),
    CONSTRAINT request_not_negative CHECK ((request !~~ '%":-%'::text)),
    CONSTRAINT running_is_an_attempt CHECK ((((state)::text <> 'running'::text) OR (attempts <> '[]'::text))),
    CONSTRAINT times_and_numbers_are_sane CHECK (((number >= 1) AND (submitted >= 0) AND ((ended IS NULL) OR (ended >= 0)) AND ((not_before IS NULL) OR (not_before >= 0)) AND ((array_index IS NULL) OR (array_index >= 0)))),
    CONSTRAINT work_not_negative CHECK ((work !~~ '%":-%'::text))
);
CREATE TABLE gridhand.nodes (
    name character varying NOT NULL,
    capacity text NOT NULL,
    devices text NOT NULL,
    labels text NOT NULL,
    price bigint NOT NULL,
    address character varying NOT NULL,
    health character varying NOT NULL,
    draining boolean NOT NULL,
    CONSTRAINT capacity_not_negative CHECK ((capacity !~~ '%":-%'::text)),
    CONSTRAINT devices_not_negative CHECK ((devices !~~ '%":-%'::text)),
    CONSTRAINT known_health CHECK (((health)::text = ANY ((ARRAY['up'::character varying, 'suspect'::character varying, 'down'::character varying])::text[]))),
    CONSTRAINT price_not_negative CHECK ((price >= 0))
);
CREATE TABLE gridhand.operations (
    owner character varying NOT NULL,
    op_id character varying NOT NULL,
    at bigint NOT NULL,
    body character varying NOT NULL,
    reply text NOT NULL
);
ALTER TABLE ONLY gridhand.gridhand_meta ALTER COLUMN id SET DEFAULT nextval('gridhand.gridhand_meta_id_seq'::regclass);
INSERT INTO gridhand.allocations VALUES (2, 1, 'ann', 'kept', 'b', 'b', '{"cpu":20000}', '[]', 'active', 'until_released', NULL, NULL, NULL, 'allocate None cpu=2;None;(None, (), [], []);None', NULL, 1794821103181);
INSERT INTO gridhand.allocations VALUES (3, 2, 'ann', '#a2-3', 'a', 'a', '{"cpu":10000,"memory":1000000}', '[]', 'active', 'job', NULL, NULL, NULL, NULL, NULL, 1794821103181);
INSERT INTO gridhand.allocations VALUES (4, 2, 'ann', '#a2-4', 'b', NULL, '{"cpu":10000}', '[]', 'released', 'job', NULL, NULL, NULL, NULL, NULL, 1794821103181);
INSERT INTO gridhand.checkpoint VALUES ('node', 'a', '{"address":"","capacity":{"cpu":80000,"memory":8000000000},"devices":[],"draining":false,"health":"up","labels":{"zone":"b"},"name":"a","price":0}');
INSERT INTO gridhand.checkpoint VALUES ('node', 'b', '{"address":"","capacity":{"cpu":40000},"devices":[],"draining":false,"health":"up","labels":{},"name":"b","price":0}');
INSERT INTO gridhand.checkpoint VALUES ('allocation', 'a1-2', '{"id":"a1-2","number":2,"epoch":1,"owner":"ann","holder":"kept","node":"b","amounts":{"cpu":20000},"devices":[],"state":"active","lifetime":"until_released","deadline":null,"ttl":null,"group":null,"asked":"allocate None cpu=2;None;(None, (), [], []);None","quality":null,"made_at":1794821103181}');
INSERT INTO gridhand.checkpoint VALUES ('job', '1', '{"after":[],"array":null,"array_index":null,"attempts":[{"allocation":"a2-3","choice":0,"node":"a","number":1,"placed":1794821103181}],"ended":null,"id":"1","name":"first","not_before":null,"number":1,"owner":"ann","reason":null,"request":null,"state":"running","submitted":1794821103181,"work":{"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","name":"first","owner":"ann","pieces":1,"priority":"medium","request":{"amounts":{"cpu":10000,"memory":1000000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1}}}');
INSERT INTO gridhand.checkpoint VALUES ('job', '2_7', '{"id":"2_7","number":2,"owner":"ann","name":null,"state":"queued","array":"2","array_index":7,"submitted":1794821103181,"ended":null,"reason":null,"not_before":null,"request":null,"after":[],"attempts":[],"work":{"request":{"amounts":{"cpu":10000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","owner":"ann","pieces":1,"priority":"medium"}}');
INSERT INTO gridhand.checkpoint VALUES ('job', '2_3', '{"id":"2_3","number":3,"owner":"ann","name":null,"state":"queued","array":"2","array_index":3,"submitted":1794821103181,"ended":null,"reason":null,"not_before":null,"request":null,"after":[],"attempts":[],"work":{"request":{"amounts":{"cpu":10000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","owner":"ann","pieces":1,"priority":"medium"}}');
INSERT INTO gridhand.checkpoint VALUES ('allocation', 'a2-3', '{"id":"a2-3","number":3,"epoch":2,"owner":"ann","holder":"#a2-3","node":"a","amounts":{"cpu":10000,"memory":1000000},"devices":[],"state":"active","lifetime":"job","deadline":null,"ttl":null,"group":null,"asked":null,"quality":null,"made_at":1794821103181}');
INSERT INTO gridhand.checkpoint VALUES ('job', '4', '{"id":"4","number":4,"owner":"ann","name":null,"state":"queued","array":null,"array_index":null,"submitted":1794821103181,"ended":null,"reason":null,"not_before":null,"request":null,"after":[],"attempts":[],"work":{"request":{"amounts":{"cpu":10000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","owner":"ann","pieces":1,"priority":"medium"}}');
INSERT INTO gridhand.checkpoint VALUES ('allocation', 'a2-4', '{"id":"a2-4","number":4,"epoch":2,"owner":"ann","holder":"#a2-4","node":"b","amounts":{"cpu":10000},"devices":[],"state":"active","lifetime":"job","deadline":null,"ttl":null,"group":null,"asked":null,"quality":null,"made_at":1794821103181}');
INSERT INTO gridhand.events VALUES (13, 1794821103181, 'job.started', '4', 'ann', NULL, '', '{"id":"4","number":4,"owner":"ann","name":null,"state":"running","array":null,"array_index":null,"submitted":1794821103181,"ended":null,"reason":null,"not_before":null,"request":null,"after":[],"attempts":[{"number":1,"node":"b","allocation":"a2-4","choice":0,"placed":1794821103181}]}');
INSERT INTO gridhand.events VALUES (14, 1794821103181, 'allocation.released', 'a2-4', 'ann', NULL, '', '{"id":"a2-4","number":4,"epoch":2,"owner":"ann","holder":"#a2-4","node":"b","amounts":{"cpu":10000},"devices":[],"state":"released","lifetime":"job","deadline":null,"ttl":null,"group":null,"asked":null,"quality":null,"made_at":1794821103181}');
INSERT INTO gridhand.events VALUES (15, 1794821103181, 'job.ended', '4', 'ann', NULL, '', '{"id":"4","number":4,"owner":"ann","name":null,"state":"failed","array":null,"array_index":null,"submitted":1794821103181,"ended":1794821103181,"reason":"exit","not_before":null,"request":null,"after":[],"attempts":[{"number":1,"node":"b","allocation":"a2-4","choice":0,"placed":1794821103181,"ended":1794821103181,"exit_code":3,"reason":"exit","message":"no luck"}]}');
INSERT INTO gridhand.gridhand_meta VALUES (1, 2, '609325928b3e43038cd35fac88fd4d95', 2, 2, 1794821103181, 5, 12, NULL, 5);
INSERT INTO gridhand.jobs VALUES (2, '2_7', 'ann', NULL, 'queued', 1, '2', 7, 1794821103181, NULL, NULL, NULL, '{"request":{"amounts":{"cpu":10000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","owner":"ann","pieces":1,"priority":"medium"}', NULL, '[]', '[]');
INSERT INTO gridhand.jobs VALUES (3, '2_3', 'ann', NULL, 'queued', 1, '2', 3, 1794821103181, NULL, NULL, NULL, '{"request":{"amounts":{"cpu":10000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","owner":"ann","pieces":1,"priority":"medium"}', NULL, '[]', '[]');
INSERT INTO gridhand.jobs VALUES (1, '1', 'ann', 'first', 'running', 1, NULL, NULL, 1794821103181, NULL, NULL, NULL, '{"request":{"amounts":{"cpu":10000,"memory":1000000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","name":"first","owner":"ann","pieces":1,"priority":"medium"}', NULL, '[]', '[{"number":1,"node":"a","allocation":"a2-3","choice":0,"placed":1794821103181}]');
INSERT INTO gridhand.jobs VALUES (4, '4', 'ann', NULL, 'failed', NULL, NULL, NULL, 1794821103181, 1794821103181, 'exit', NULL, '{"request":{"amounts":{"cpu":10000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","owner":"ann","pieces":1,"priority":"medium"}', NULL, '[]', '[{"number":1,"node":"b","allocation":"a2-4","choice":0,"placed":1794821103181,"ended":1794821103181,"exit_code":3,"reason":"exit","message":"no luck"}]');
INSERT INTO gridhand.nodes VALUES ('a', '{"cpu":80000,"memory":8000000000}', '[]', '{"zone":"b"}', 0, '', 'up', false);
INSERT INTO gridhand.nodes VALUES ('b', '{"cpu":40000}', '[]', '{}', 0, '', 'up', false);
INSERT INTO gridhand.operations VALUES ('ann', 'one', 1794821103166, '9c557f070d3bc285252a1cefb24b0b342add0bb00e0ae05c50f28492ae9e36b3', '[{"id": "a1-1", "number": 1, "epoch": 1, "owner": "ann", "holder": "gone", "node": "b", "amounts": {"cpu": 10000}, "devices": [], "state": "active", "lifetime": "until_released", "deadline": null, "ttl": null, "group": null, "asked": "allocate None cpu=1;None;(None, (), [], []);None", "quality": null, "made_at": 1794821103166}]');
INSERT INTO gridhand.operations VALUES ('ann', 'two', 1794821103181, '72939f1598d7d06ed825cfb2794ba4df957a9f90d82e74825282009c73d83c3c', '[{"id": "a1-2", "number": 2, "epoch": 1, "owner": "ann", "holder": "kept", "node": "b", "amounts": {"cpu": 20000}, "devices": [], "state": "active", "lifetime": "until_released", "deadline": null, "ttl": null, "group": null, "asked": "allocate None cpu=2;None;(None, (), [], []);None", "quality": null, "made_at": 1794821103181}]');
ALTER TABLE ONLY gridhand.allocations
    ADD CONSTRAINT allocations_pkey PRIMARY KEY (number);
ALTER TABLE ONLY gridhand.checkpoint
    ADD CONSTRAINT checkpoint_pkey PRIMARY KEY (kind, subject);
ALTER TABLE ONLY gridhand.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (number);
ALTER TABLE ONLY gridhand.gridhand_meta
    ADD CONSTRAINT gridhand_meta_pkey PRIMARY KEY (id);
ALTER TABLE ONLY gridhand.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (number);
ALTER TABLE ONLY gridhand.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (name);
ALTER TABLE ONLY gridhand.operations
    ADD CONSTRAINT operations_pkey PRIMARY KEY (owner, op_id);
CREATE INDEX ended_jobs ON gridhand.jobs USING btree (state, number) WHERE (open IS NULL);
CREATE INDEX ended_jobs_by_owner ON gridhand.jobs USING btree (owner, state, number) WHERE (open IS NULL);
CREATE UNIQUE INDEX jobs_by_id ON gridhand.jobs USING btree (id);
CREATE INDEX jobs_by_owner ON gridhand.jobs USING btree (owner, number);
CREATE INDEX jobs_of_array ON gridhand.jobs USING btree ("array", number) WHERE ("array" IS NOT NULL);
CREATE INDEX live_allocations ON gridhand.allocations USING btree (live_node) WHERE (live_node IS NOT NULL);
CREATE UNIQUE INDEX one_live_allocation_per_holder ON gridhand.allocations USING btree (owner, holder) WHERE (live_node IS NOT NULL);
CREATE INDEX open_jobs ON gridhand.jobs USING btree (open, number) WHERE (open IS NOT NULL);
CREATE INDEX operations_by_age ON gridhand.operations USING btree (at);
ALTER TABLE ONLY gridhand.allocations
    ADD CONSTRAINT allocations_live_node_fkey FOREIGN KEY (live_node) REFERENCES gridhand.nodes(name);
