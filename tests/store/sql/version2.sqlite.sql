BEGIN TRANSACTION;
CREATE TABLE allocations (
	number INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	owner VARCHAR NOT NULL, 
	holder VARCHAR NOT NULL, 
	node VARCHAR NOT NULL, 
	live_node VARCHAR, 
	amounts TEXT NOT NULL, 
	devices TEXT NOT NULL, 
	state VARCHAR NOT NULL, 
	lifetime VARCHAR NOT NULL, 
	deadline INTEGER, 
	ttl INTEGER, 
	"group" VARCHAR, 
	asked TEXT, 
	quality VARCHAR, 
	made_at INTEGER NOT NULL, 
	PRIMARY KEY (number), 
	CONSTRAINT amounts_not_negative CHECK (amounts NOT LIKE '%":-%'), 
	CONSTRAINT devices_not_negative CHECK (devices NOT LIKE '%":-%'), 
	CONSTRAINT live_while_open CHECK ((live_node IS NOT NULL AND live_node = node AND state IN ('reserved', 'active')) OR (live_node IS NULL AND state IN ('released', 'expired', 'lost'))), 
	CONSTRAINT what_lapses_has_a_deadline CHECK (deadline IS NOT NULL OR (state <> 'reserved' AND lifetime <> 'lease')), 
	CONSTRAINT ttl_positive CHECK (ttl > 0), 
	FOREIGN KEY(live_node) REFERENCES nodes (name)
);
INSERT INTO "allocations" VALUES(2,1,'ann','kept','b','b','{"cpu":20000}','[]','active','until_released',NULL,NULL,NULL,'allocate None cpu=2;None;(None, (), [], []);None',NULL,1794821096947);
INSERT INTO "allocations" VALUES(3,2,'ann','#a2-3','a','a','{"cpu":10000,"memory":1000000}','[]','active','job',NULL,NULL,NULL,NULL,NULL,1794821096947);
INSERT INTO "allocations" VALUES(4,2,'ann','#a2-4','b',NULL,'{"cpu":10000}','[]','released','job',NULL,NULL,NULL,NULL,NULL,1794821096947);
CREATE TABLE checkpoint (
	kind VARCHAR NOT NULL, 
	subject VARCHAR NOT NULL, 
	"row" TEXT NOT NULL, 
	PRIMARY KEY (kind, subject), 
	CONSTRAINT known_kind CHECK (kind IN ('node', 'allocation', 'job'))
);
INSERT INTO "checkpoint" VALUES('node','a','{"address":"","capacity":{"cpu":80000,"memory":8000000000},"devices":[],"draining":false,"health":"up","labels":{"zone":"b"},"name":"a","price":0}');
INSERT INTO "checkpoint" VALUES('node','b','{"address":"","capacity":{"cpu":40000},"devices":[],"draining":false,"health":"up","labels":{},"name":"b","price":0}');
INSERT INTO "checkpoint" VALUES('allocation','a1-2','{"id":"a1-2","number":2,"epoch":1,"owner":"ann","holder":"kept","node":"b","amounts":{"cpu":20000},"devices":[],"state":"active","lifetime":"until_released","deadline":null,"ttl":null,"group":null,"asked":"allocate None cpu=2;None;(None, (), [], []);None","quality":null,"made_at":1794821096947}');
INSERT INTO "checkpoint" VALUES('job','1','{"after":[],"array":null,"array_index":null,"attempts":[{"allocation":"a2-3","choice":0,"node":"a","number":1,"placed":1794821096947}],"ended":null,"id":"1","name":"first","not_before":null,"number":1,"owner":"ann","reason":null,"request":null,"state":"running","submitted":1794821096947,"work":{"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","name":"first","owner":"ann","pieces":1,"priority":"medium","request":{"amounts":{"cpu":10000,"memory":1000000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1}}}');
INSERT INTO "checkpoint" VALUES('job','2_7','{"id":"2_7","number":2,"owner":"ann","name":null,"state":"queued","array":"2","array_index":7,"submitted":1794821096947,"ended":null,"reason":null,"not_before":null,"request":null,"after":[],"attempts":[],"work":{"request":{"amounts":{"cpu":10000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","owner":"ann","pieces":1,"priority":"medium"}}');
INSERT INTO "checkpoint" VALUES('job','2_3','{"id":"2_3","number":3,"owner":"ann","name":null,"state":"queued","array":"2","array_index":3,"submitted":1794821096947,"ended":null,"reason":null,"not_before":null,"request":null,"after":[],"attempts":[],"work":{"request":{"amounts":{"cpu":10000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","owner":"ann","pieces":1,"priority":"medium"}}');
INSERT INTO "checkpoint" VALUES('allocation','a2-3','{"id":"a2-3","number":3,"epoch":2,"owner":"ann","holder":"#a2-3","node":"a","amounts":{"cpu":10000,"memory":1000000},"devices":[],"state":"active","lifetime":"job","deadline":null,"ttl":null,"group":null,"asked":null,"quality":null,"made_at":1794821096947}');
INSERT INTO "checkpoint" VALUES('job','4','{"id":"4","number":4,"owner":"ann","name":null,"state":"queued","array":null,"array_index":null,"submitted":1794821096947,"ended":null,"reason":null,"not_before":null,"request":null,"after":[],"attempts":[],"work":{"request":{"amounts":{"cpu":10000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","owner":"ann","pieces":1,"priority":"medium"}}');
INSERT INTO "checkpoint" VALUES('allocation','a2-4','{"id":"a2-4","number":4,"epoch":2,"owner":"ann","holder":"#a2-4","node":"b","amounts":{"cpu":10000},"devices":[],"state":"active","lifetime":"job","deadline":null,"ttl":null,"group":null,"asked":null,"quality":null,"made_at":1794821096947}');
CREATE TABLE events (
	number INTEGER NOT NULL, 
	at INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	subject VARCHAR NOT NULL, 
	owner VARCHAR NOT NULL, 
	op_id VARCHAR, 
	why TEXT NOT NULL, 
	"row" TEXT, 
	PRIMARY KEY (number)
);
INSERT INTO "events" VALUES(13,1794821096947,'job.started','4','ann',NULL,'','{"id":"4","number":4,"owner":"ann","name":null,"state":"running","array":null,"array_index":null,"submitted":1794821096947,"ended":null,"reason":null,"not_before":null,"request":null,"after":[],"attempts":[{"number":1,"node":"b","allocation":"a2-4","choice":0,"placed":1794821096947}]}');
INSERT INTO "events" VALUES(14,1794821096947,'allocation.released','a2-4','ann',NULL,'','{"id":"a2-4","number":4,"epoch":2,"owner":"ann","holder":"#a2-4","node":"b","amounts":{"cpu":10000},"devices":[],"state":"released","lifetime":"job","deadline":null,"ttl":null,"group":null,"asked":null,"quality":null,"made_at":1794821096947}');
INSERT INTO "events" VALUES(15,1794821096947,'job.ended','4','ann',NULL,'','{"id":"4","number":4,"owner":"ann","name":null,"state":"failed","array":null,"array_index":null,"submitted":1794821096947,"ended":1794821096947,"reason":"exit","not_before":null,"request":null,"after":[],"attempts":[{"number":1,"node":"b","allocation":"a2-4","choice":0,"placed":1794821096947,"ended":1794821096947,"exit_code":3,"reason":"exit","message":"no luck"}]}');
CREATE TABLE gridhand_meta (
	id INTEGER NOT NULL, 
	schema_version INTEGER NOT NULL, 
	cluster_id VARCHAR NOT NULL, 
	epoch INTEGER NOT NULL, 
	writer INTEGER NOT NULL, 
	high_water_ms INTEGER NOT NULL, 
	next_number INTEGER NOT NULL, 
	checkpoint_through INTEGER NOT NULL, 
	moved_to VARCHAR, 
	next_job INTEGER NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT one_row CHECK (id = 1), 
	CONSTRAINT writer_is_owner CHECK (writer = epoch), 
	CONSTRAINT marks_are_sane CHECK (high_water_ms >= 0 AND next_number >= 1 AND next_job >= 1)
);
INSERT INTO "gridhand_meta" VALUES(1,2,'f57059d83c7f4767944738c847c4a392',2,2,1794821096947,5,12,NULL,5);
CREATE TABLE jobs (
	number INTEGER NOT NULL, 
	id VARCHAR NOT NULL, 
	owner VARCHAR NOT NULL, 
	name VARCHAR, 
	state VARCHAR NOT NULL, 
	open INTEGER, 
	array VARCHAR, 
	array_index INTEGER, 
	submitted INTEGER NOT NULL, 
	ended INTEGER, 
	reason VARCHAR, 
	not_before INTEGER, 
	work TEXT NOT NULL, 
	request TEXT, 
	"after" TEXT NOT NULL, 
	attempts TEXT NOT NULL, 
	PRIMARY KEY (number), 
	CONSTRAINT work_not_negative CHECK (work NOT LIKE '%":-%'), 
	CONSTRAINT request_not_negative CHECK (request NOT LIKE '%":-%'), 
	CONSTRAINT attempts_not_negative CHECK (attempts NOT LIKE '%":-%'), 
	CONSTRAINT open_until_ended CHECK ((open IS NOT NULL AND open = 1 AND state IN ('queued', 'running') AND ended IS NULL) OR (open IS NULL AND state IN ('succeeded', 'failed', 'cancelled', 'lost') AND ended IS NOT NULL)), 
	CONSTRAINT ended_for_a_reason CHECK ((reason IS NULL) = (ended IS NULL)), 
	CONSTRAINT only_the_queued_wait CHECK (not_before IS NULL OR state = 'queued'), 
	CONSTRAINT running_is_an_attempt CHECK (state <> 'running' OR attempts <> '[]'), 
	CONSTRAINT times_and_numbers_are_sane CHECK (number >= 1 AND submitted >= 0 AND (ended IS NULL OR ended >= 0) AND (not_before IS NULL OR not_before >= 0) AND (array_index IS NULL OR array_index >= 0)), 
	CONSTRAINT array_and_index CHECK (("array" IS NULL) = (array_index IS NULL)), 
	CONSTRAINT id_tells_the_number CHECK (id = CASE WHEN "array" IS NULL THEN CAST(number AS VARCHAR) ELSE "array" || '_' || CAST(array_index AS VARCHAR) END)
);
INSERT INTO "jobs" VALUES(1,'1','ann','first','running',1,NULL,NULL,1794821096947,NULL,NULL,NULL,'{"request":{"amounts":{"cpu":10000,"memory":1000000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","name":"first","owner":"ann","pieces":1,"priority":"medium"}',NULL,'[]','[{"number":1,"node":"a","allocation":"a2-3","choice":0,"placed":1794821096947}]');
INSERT INTO "jobs" VALUES(2,'2_7','ann',NULL,'queued',1,'2',7,1794821096947,NULL,NULL,NULL,'{"request":{"amounts":{"cpu":10000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","owner":"ann","pieces":1,"priority":"medium"}',NULL,'[]','[]');
INSERT INTO "jobs" VALUES(3,'2_3','ann',NULL,'queued',1,'2',3,1794821096947,NULL,NULL,NULL,'{"request":{"amounts":{"cpu":10000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","owner":"ann","pieces":1,"priority":"medium"}',NULL,'[]','[]');
INSERT INTO "jobs" VALUES(4,'4','ann',NULL,'failed',NULL,NULL,NULL,1794821096947,1794821096947,'exit',NULL,'{"request":{"amounts":{"cpu":10000}},"retry":{"delay_ms":1000,"exit_codes":[],"losses":5,"most_delay_ms":300000,"on":["exit","node_lost","oom","preempted","signal","start_failed"],"tries":1},"command":["true"],"detached":false,"environment":"","folder":"/","grace_ms":30000,"layout":"any","owner":"ann","pieces":1,"priority":"medium"}',NULL,'[]','[{"number":1,"node":"b","allocation":"a2-4","choice":0,"placed":1794821096947,"ended":1794821096947,"exit_code":3,"reason":"exit","message":"no luck"}]');
CREATE TABLE nodes (
	name VARCHAR NOT NULL, 
	capacity TEXT NOT NULL, 
	devices TEXT NOT NULL, 
	labels TEXT NOT NULL, 
	price INTEGER NOT NULL, 
	address VARCHAR NOT NULL, 
	health VARCHAR NOT NULL, 
	draining BOOLEAN NOT NULL, 
	PRIMARY KEY (name), 
	CONSTRAINT capacity_not_negative CHECK (capacity NOT LIKE '%":-%'), 
	CONSTRAINT devices_not_negative CHECK (devices NOT LIKE '%":-%'), 
	CONSTRAINT price_not_negative CHECK (price >= 0), 
	CONSTRAINT known_health CHECK (health IN ('up', 'suspect', 'down'))
);
INSERT INTO "nodes" VALUES('a','{"cpu":80000,"memory":8000000000}','[]','{"zone":"b"}',0,'','up',0);
INSERT INTO "nodes" VALUES('b','{"cpu":40000}','[]','{}',0,'','up',0);
CREATE TABLE operations (
	owner VARCHAR NOT NULL, 
	op_id VARCHAR NOT NULL, 
	at INTEGER NOT NULL, 
	body VARCHAR NOT NULL, 
	reply TEXT NOT NULL, 
	PRIMARY KEY (owner, op_id)
);
INSERT INTO "operations" VALUES('ann','one',1794821096932,'9c557f070d3bc285252a1cefb24b0b342add0bb00e0ae05c50f28492ae9e36b3','[{"id": "a1-1", "number": 1, "epoch": 1, "owner": "ann", "holder": "gone", "node": "b", "amounts": {"cpu": 10000}, "devices": [], "state": "active", "lifetime": "until_released", "deadline": null, "ttl": null, "group": null, "asked": "allocate None cpu=1;None;(None, (), [], []);None", "quality": null, "made_at": 1794821096932}]');
INSERT INTO "operations" VALUES('ann','two',1794821096947,'72939f1598d7d06ed825cfb2794ba4df957a9f90d82e74825282009c73d83c3c','[{"id": "a1-2", "number": 2, "epoch": 1, "owner": "ann", "holder": "kept", "node": "b", "amounts": {"cpu": 20000}, "devices": [], "state": "active", "lifetime": "until_released", "deadline": null, "ttl": null, "group": null, "asked": "allocate None cpu=2;None;(None, (), [], []);None", "quality": null, "made_at": 1794821096947}]');
CREATE UNIQUE INDEX one_live_allocation_per_holder ON allocations (owner, holder) WHERE live_node IS NOT NULL;
CREATE INDEX live_allocations ON allocations (live_node) WHERE live_node IS NOT NULL;
CREATE INDEX operations_by_age ON operations (at);
CREATE UNIQUE INDEX jobs_by_id ON jobs (id);
CREATE INDEX jobs_by_owner ON jobs (owner, number);
CREATE INDEX jobs_of_array ON jobs (array, number) WHERE "array" IS NOT NULL;
CREATE INDEX open_jobs ON jobs (open, number) WHERE open IS NOT NULL;
CREATE INDEX ended_jobs ON jobs (state, number) WHERE open IS NULL;
CREATE INDEX ended_jobs_by_owner ON jobs (owner, state, number) WHERE open IS NULL;
COMMIT;
