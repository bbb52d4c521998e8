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
    CONSTRAINT known_kind CHECK (((kind)::text = ANY ((ARRAY['node'::character varying, 'allocation'::character varying])::text[])))
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
    CONSTRAINT marks_are_sane CHECK (((high_water_ms >= 0) AND (next_number >= 1))),
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
INSERT INTO gridhand.allocations VALUES (2, 1, 'ann', 'kept', 'b', 'b', '{"cpu":20000}', '[]', 'active', 'until_released', NULL, NULL, NULL, 'allocate None cpu=2;None;(None, (), [], []);None', NULL, 1794796867921);
INSERT INTO gridhand.allocations VALUES (3, 2, 'ann', 'half', 'a', 'a', '{}', '[{"device":"GPU-0a","exclusive":false,"memory":8000000000,"share":5000}]', 'active', 'until_released', NULL, NULL, NULL, 'allocate None nothing;GpuAsk(devices=1, share=5000, memory_bytes=None, model=None, capability=None);(None, (), [], []);None', NULL, 1794796868002);
INSERT INTO gridhand.allocations VALUES (6, 2, 'ann', 'gang#0', 'b', 'b', '{"cpu":10000}', '[]', 'active', 'until_released', NULL, NULL, 'g2-6', 'allocate None cpu=1;None;(None, (), [], []);None', NULL, 1794796868004);
INSERT INTO gridhand.allocations VALUES (7, 2, 'ann', 'gang#1', 'b', 'b', '{"cpu":10000}', '[]', 'active', 'until_released', NULL, NULL, 'g2-6', 'allocate None cpu=1;None;(None, (), [], []);None', NULL, 1794796868004);
INSERT INTO gridhand.allocations VALUES (8, 2, 'ann', 'later', 'a', 'a', '{"cpu":10000}', '[]', 'reserved', 'until_released', 1825796868005, 31000000000, NULL, 'reserve 31000000000 cpu=1;None;(None, (), [], []);None', NULL, 1794796868005);
INSERT INTO gridhand.allocations VALUES (9, 2, 'ann', 'brief', 'a', NULL, '{"memory":1000000000}', '[]', 'released', 'until_released', NULL, NULL, NULL, 'allocate None memory=1GB;None;(None, (), [], []);None', NULL, 1794796868009);
INSERT INTO gridhand.checkpoint VALUES ('node', 'a', '{"address":"","capacity":{"cpu":80000,"memory":8000000000},"devices":[{"capability":[8,0],"health":"ok","id":"GPU-0a","index":0,"memory":16000000000,"model":"A100"}],"draining":false,"health":"up","labels":{"zone":"b"},"name":"a","price":0}');
INSERT INTO gridhand.checkpoint VALUES ('node', 'b', '{"address":"","capacity":{"cpu":40000},"devices":[],"draining":false,"health":"up","labels":{},"name":"b","price":12500}');
INSERT INTO gridhand.checkpoint VALUES ('allocation', 'a1-2', '{"id":"a1-2","number":2,"epoch":1,"owner":"ann","holder":"kept","node":"b","amounts":{"cpu":20000},"devices":[],"state":"active","lifetime":"until_released","deadline":null,"ttl":null,"group":null,"asked":"allocate None cpu=2;None;(None, (), [], []);None","quality":null,"made_at":1794796867921}');
INSERT INTO gridhand.events VALUES (8, 1794796868002, 'allocation.active', 'a2-3', 'ann', 'three', '', '{"id":"a2-3","number":3,"epoch":2,"owner":"ann","holder":"half","node":"a","amounts":{},"devices":[{"device":"GPU-0a","exclusive":false,"memory":8000000000,"share":5000}],"state":"active","lifetime":"until_released","deadline":null,"ttl":null,"group":null,"asked":"allocate None nothing;GpuAsk(devices=1, share=5000, memory_bytes=None, model=None, capability=None);(None, (), [], []);None","quality":null,"made_at":1794796868002}');
INSERT INTO gridhand.events VALUES (9, 1794796868004, 'allocation.active', 'a2-6', 'ann', NULL, '', '{"id":"a2-6","number":6,"epoch":2,"owner":"ann","holder":"gang#0","node":"b","amounts":{"cpu":10000},"devices":[],"state":"active","lifetime":"until_released","deadline":null,"ttl":null,"group":"g2-6","asked":"allocate None cpu=1;None;(None, (), [], []);None","quality":null,"made_at":1794796868004}');
INSERT INTO gridhand.events VALUES (10, 1794796868004, 'allocation.active', 'a2-7', 'ann', NULL, '', '{"id":"a2-7","number":7,"epoch":2,"owner":"ann","holder":"gang#1","node":"b","amounts":{"cpu":10000},"devices":[],"state":"active","lifetime":"until_released","deadline":null,"ttl":null,"group":"g2-6","asked":"allocate None cpu=1;None;(None, (), [], []);None","quality":null,"made_at":1794796868004}');
INSERT INTO gridhand.events VALUES (11, 1794796868005, 'allocation.reserved', 'a2-8', 'ann', NULL, '', '{"id":"a2-8","number":8,"epoch":2,"owner":"ann","holder":"later","node":"a","amounts":{"cpu":10000},"devices":[],"state":"reserved","lifetime":"until_released","deadline":1825796868005,"ttl":31000000000,"group":null,"asked":"reserve 31000000000 cpu=1;None;(None, (), [], []);None","quality":null,"made_at":1794796868005}');
INSERT INTO gridhand.events VALUES (12, 1794796868006, 'node.drained', 'b', 'ann', NULL, '', '{"address":"","capacity":{"cpu":40000},"devices":[],"draining":true,"health":"up","labels":{},"name":"b","price":12500}');
INSERT INTO gridhand.events VALUES (13, 1794796868009, 'allocation.active', 'a2-9', 'ann', 'four', '', '{"id":"a2-9","number":9,"epoch":2,"owner":"ann","holder":"brief","node":"a","amounts":{"memory":1000000000},"devices":[],"state":"active","lifetime":"until_released","deadline":null,"ttl":null,"group":null,"asked":"allocate None memory=1GB;None;(None, (), [], []);None","quality":null,"made_at":1794796868009}');
INSERT INTO gridhand.events VALUES (14, 1794796868010, 'allocation.released', 'a2-9', 'ann', NULL, '', '{"id":"a2-9","number":9,"epoch":2,"owner":"ann","holder":"brief","node":"a","amounts":{"memory":1000000000},"devices":[],"state":"released","lifetime":"until_released","deadline":null,"ttl":null,"group":null,"asked":"allocate None memory=1GB;None;(None, (), [], []);None","quality":null,"made_at":1794796868009}');
INSERT INTO gridhand.gridhand_meta VALUES (1, 1, 'a225bd508a074ae89b4d246ed8b9464d', 2, 2, 1794796868010, 10, 7, NULL);
INSERT INTO gridhand.nodes VALUES ('a', '{"cpu":80000,"memory":8000000000}', '[{"capability":[8,0],"health":"ok","id":"GPU-0a","index":0,"memory":16000000000,"model":"A100"}]', '{"zone":"b"}', 0, '', 'up', false);
INSERT INTO gridhand.nodes VALUES ('b', '{"cpu":40000}', '[]', '{}', 12500, '', 'up', true);
INSERT INTO gridhand.operations VALUES ('ann', 'one', 1794796867917, '9c557f070d3bc285252a1cefb24b0b342add0bb00e0ae05c50f28492ae9e36b3', '[{"id": "a1-1", "number": 1, "epoch": 1, "owner": "ann", "holder": "gone", "node": "old", "amounts": {"cpu": 10000}, "devices": [], "state": "active", "lifetime": "until_released", "deadline": null, "ttl": null, "group": null, "asked": "allocate None cpu=1;None;(None, (), [], []);None", "quality": null, "made_at": 1794796867917}]');
INSERT INTO gridhand.operations VALUES ('ann', 'two', 1794796867921, '72939f1598d7d06ed825cfb2794ba4df957a9f90d82e74825282009c73d83c3c', '[{"id": "a1-2", "number": 2, "epoch": 1, "owner": "ann", "holder": "kept", "node": "b", "amounts": {"cpu": 20000}, "devices": [], "state": "active", "lifetime": "until_released", "deadline": null, "ttl": null, "group": null, "asked": "allocate None cpu=2;None;(None, (), [], []);None", "quality": null, "made_at": 1794796867921}]');
INSERT INTO gridhand.operations VALUES ('ann', 'three', 1794796868002, 'b06f9331ea233ba2555632518456bbb627d7bcfbab09c7c450383f6c2a607b8f', '[{"id": "a2-3", "number": 3, "epoch": 2, "owner": "ann", "holder": "half", "node": "a", "amounts": {}, "devices": [{"device": "GPU-0a", "share": 5000, "memory": 8000000000, "exclusive": false}], "state": "active", "lifetime": "until_released", "deadline": null, "ttl": null, "group": null, "asked": "allocate None nothing;GpuAsk(devices=1, share=5000, memory_bytes=None, model=None, capability=None);(None, (), [], []);None", "quality": null, "made_at": 1794796868002}]');
INSERT INTO gridhand.operations VALUES ('ann', 'four', 1794796868009, '469777e89e905e1ca60f825c16df7739c2c10738c9a2679ff00337a3075fdda8', '[{"id": "a2-9", "number": 9, "epoch": 2, "owner": "ann", "holder": "brief", "node": "a", "amounts": {"memory": 1000000000}, "devices": [], "state": "active", "lifetime": "until_released", "deadline": null, "ttl": null, "group": null, "asked": "allocate None memory=1GB;None;(None, (), [], []);None", "quality": null, "made_at": 1794796868009}]');
ALTER TABLE ONLY gridhand.allocations
    ADD CONSTRAINT allocations_pkey PRIMARY KEY (number);
ALTER TABLE ONLY gridhand.checkpoint
    ADD CONSTRAINT checkpoint_pkey PRIMARY KEY (kind, subject);
ALTER TABLE ONLY gridhand.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (number);
ALTER TABLE ONLY gridhand.gridhand_meta
    ADD CONSTRAINT gridhand_meta_pkey PRIMARY KEY (id);
ALTER TABLE ONLY gridhand.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (name);
ALTER TABLE ONLY gridhand.operations
    ADD CONSTRAINT operations_pkey PRIMARY KEY (owner, op_id);
CREATE INDEX live_allocations ON gridhand.allocations USING btree (live_node) WHERE (live_node IS NOT NULL);
CREATE UNIQUE INDEX one_live_allocation_per_holder ON gridhand.allocations USING btree (owner, holder) WHERE (live_node IS NOT NULL);
CREATE INDEX operations_by_age ON gridhand.operations USING btree (at);
ALTER TABLE ONLY gridhand.allocations
    ADD CONSTRAINT allocations_live_node_fkey FOREIGN KEY (live_node) REFERENCES gridhand.nodes(name);
