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
INSERT INTO "allocations" VALUES(2,1,'ann','kept','b','b','{"cpu":20000}','[]','active','until_released',NULL,NULL,NULL,'allocate None cpu=2;None;(None, (), [], []);None',NULL,1794796866577);
INSERT INTO "allocations" VALUES(3,2,'ann','half','a','a','{}','[{"device":"GPU-0a","exclusive":false,"memory":8000000000,"share":5000}]','active','until_released',NULL,NULL,NULL,'allocate None nothing;GpuAsk(devices=1, share=5000, memory_bytes=None, model=None, capability=None);(None, (), [], []);None',NULL,1794796866644);
INSERT INTO "allocations" VALUES(6,2,'ann','gang#0','b','b','{"cpu":10000}','[]','active','until_released',NULL,NULL,'g2-6','allocate None cpu=1;None;(None, (), [], []);None',NULL,1794796866645);
INSERT INTO "allocations" VALUES(7,2,'ann','gang#1','b','b','{"cpu":10000}','[]','active','until_released',NULL,NULL,'g2-6','allocate None cpu=1;None;(None, (), [], []);None',NULL,1794796866645);
INSERT INTO "allocations" VALUES(8,2,'ann','later','a','a','{"cpu":10000}','[]','reserved','until_released',1825796866646,31000000000,NULL,'reserve 31000000000 cpu=1;None;(None, (), [], []);None',NULL,1794796866646);
INSERT INTO "allocations" VALUES(9,2,'ann','brief','a',NULL,'{"memory":1000000000}','[]','released','until_released',NULL,NULL,NULL,'allocate None memory=1GB;None;(None, (), [], []);None',NULL,1794796866649);
CREATE TABLE checkpoint (
	kind VARCHAR NOT NULL, 
	subject VARCHAR NOT NULL, 
	"row" TEXT NOT NULL, 
	PRIMARY KEY (kind, subject), 
	CONSTRAINT known_kind CHECK (kind IN ('node', 'allocation'))
);
INSERT INTO "checkpoint" VALUES('node','a','{"address":"","capacity":{"cpu":80000,"memory":8000000000},"devices":[{"capability":[8,0],"health":"ok","id":"GPU-0a","index":0,"memory":16000000000,"model":"A100"}],"draining":false,"health":"up","labels":{"zone":"b"},"name":"a","price":0}');
INSERT INTO "checkpoint" VALUES('node','b','{"address":"","capacity":{"cpu":40000},"devices":[],"draining":false,"health":"up","labels":{},"name":"b","price":12500}');
INSERT INTO "checkpoint" VALUES('allocation','a1-2','{"id":"a1-2","number":2,"epoch":1,"owner":"ann","holder":"kept","node":"b","amounts":{"cpu":20000},"devices":[],"state":"active","lifetime":"until_released","deadline":null,"ttl":null,"group":null,"asked":"allocate None cpu=2;None;(None, (), [], []);None","quality":null,"made_at":1794796866577}');
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
INSERT INTO "events" VALUES(8,1794796866644,'allocation.active','a2-3','ann','three','','{"id":"a2-3","number":3,"epoch":2,"owner":"ann","holder":"half","node":"a","amounts":{},"devices":[{"device":"GPU-0a","exclusive":false,"memory":8000000000,"share":5000}],"state":"active","lifetime":"until_released","deadline":null,"ttl":null,"group":null,"asked":"allocate None nothing;GpuAsk(devices=1, share=5000, memory_bytes=None, model=None, capability=None);(None, (), [], []);None","quality":null,"made_at":1794796866644}');
INSERT INTO "events" VALUES(9,1794796866645,'allocation.active','a2-6','ann',NULL,'','{"id":"a2-6","number":6,"epoch":2,"owner":"ann","holder":"gang#0","node":"b","amounts":{"cpu":10000},"devices":[],"state":"active","lifetime":"until_released","deadline":null,"ttl":null,"group":"g2-6","asked":"allocate None cpu=1;None;(None, (), [], []);None","quality":null,"made_at":1794796866645}');
INSERT INTO "events" VALUES(10,1794796866645,'allocation.active','a2-7','ann',NULL,'','{"id":"a2-7","number":7,"epoch":2,"owner":"ann","holder":"gang#1","node":"b","amounts":{"cpu":10000},"devices":[],"state":"active","lifetime":"until_released","deadline":null,"ttl":null,"group":"g2-6","asked":"allocate None cpu=1;None;(None, (), [], []);None","quality":null,"made_at":1794796866645}');
INSERT INTO "events" VALUES(11,1794796866646,'allocation.reserved','a2-8','ann',NULL,'','{"id":"a2-8","number":8,"epoch":2,"owner":"ann","holder":"later","node":"a","amounts":{"cpu":10000},"devices":[],"state":"reserved","lifetime":"until_released","deadline":1825796866646,"ttl":31000000000,"group":null,"asked":"reserve 31000000000 cpu=1;None;(None, (), [], []);None","quality":null,"made_at":1794796866646}');
INSERT INTO "events" VALUES(12,1794796866647,'node.drained','b','ann',NULL,'','{"address":"","capacity":{"cpu":40000},"devices":[],"draining":true,"health":"up","labels":{},"name":"b","price":12500}');
INSERT INTO "events" VALUES(13,1794796866649,'allocation.active','a2-9','ann','four','','{"id":"a2-9","number":9,"epoch":2,"owner":"ann","holder":"brief","node":"a","amounts":{"memory":1000000000},"devices":[],"state":"active","lifetime":"until_released","deadline":null,"ttl":null,"group":null,"asked":"allocate None memory=1GB;None;(None, (), [], []);None","quality":null,"made_at":1794796866649}');
INSERT INTO "events" VALUES(14,1794796866650,'allocation.released','a2-9','ann',NULL,'','{"id":"a2-9","number":9,"epoch":2,"owner":"ann","holder":"brief","node":"a","amounts":{"memory":1000000000},"devices":[],"state":"released","lifetime":"until_released","deadline":null,"ttl":null,"group":null,"asked":"allocate None memory=1GB;None;(None, (), [], []);None","quality":null,"made_at":1794796866649}');
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
	PRIMARY KEY (id), 
	CONSTRAINT one_row CHECK (id = 1), 
	CONSTRAINT writer_is_owner CHECK (writer = epoch), 
	CONSTRAINT marks_are_sane CHECK (high_water_ms >= 0 AND next_number >= 1)
);
INSERT INTO "gridhand_meta" VALUES(1,1,'fa88150438324fcb871f44dd6f56b83e',2,2,1794796866650,10,7,NULL);
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
INSERT INTO "nodes" VALUES('a','{"cpu":80000,"memory":8000000000}','[{"capability":[8,0],"health":"ok","id":"GPU-0a","index":0,"memory":16000000000,"model":"A100"}]','{"zone":"b"}',0,'','up',0);
INSERT INTO "nodes" VALUES('b','{"cpu":40000}','[]','{}',12500,'','up',1);
CREATE TABLE operations (
	owner VARCHAR NOT NULL, 
	op_id VARCHAR NOT NULL, 
	at INTEGER NOT NULL, 
	body VARCHAR NOT NULL, 
	reply TEXT NOT NULL, 
	PRIMARY KEY (owner, op_id)
);
INSERT INTO "operations" VALUES('ann','one',1794796866575,'9c557f070d3bc285252a1cefb24b0b342add0bb00e0ae05c50f28492ae9e36b3','[{"id": "a1-1", "number": 1, "epoch": 1, "owner": "ann", "holder": "gone", "node": "old", "amounts": {"cpu": 10000}, "devices": [], "state": "active", "lifetime": "until_released", "deadline": null, "ttl": null, "group": null, "asked": "allocate None cpu=1;None;(None, (), [], []);None", "quality": null, "made_at": 1794796866575}]');
INSERT INTO "operations" VALUES('ann','two',1794796866577,'72939f1598d7d06ed825cfb2794ba4df957a9f90d82e74825282009c73d83c3c','[{"id": "a1-2", "number": 2, "epoch": 1, "owner": "ann", "holder": "kept", "node": "b", "amounts": {"cpu": 20000}, "devices": [], "state": "active", "lifetime": "until_released", "deadline": null, "ttl": null, "group": null, "asked": "allocate None cpu=2;None;(None, (), [], []);None", "quality": null, "made_at": 1794796866577}]');
INSERT INTO "operations" VALUES('ann','three',1794796866644,'b06f9331ea233ba2555632518456bbb627d7bcfbab09c7c450383f6c2a607b8f','[{"id": "a2-3", "number": 3, "epoch": 2, "owner": "ann", "holder": "half", "node": "a", "amounts": {}, "devices": [{"device": "GPU-0a", "share": 5000, "memory": 8000000000, "exclusive": false}], "state": "active", "lifetime": "until_released", "deadline": null, "ttl": null, "group": null, "asked": "allocate None nothing;GpuAsk(devices=1, share=5000, memory_bytes=None, model=None, capability=None);(None, (), [], []);None", "quality": null, "made_at": 1794796866644}]');
INSERT INTO "operations" VALUES('ann','four',1794796866649,'469777e89e905e1ca60f825c16df7739c2c10738c9a2679ff00337a3075fdda8','[{"id": "a2-9", "number": 9, "epoch": 2, "owner": "ann", "holder": "brief", "node": "a", "amounts": {"memory": 1000000000}, "devices": [], "state": "active", "lifetime": "until_released", "deadline": null, "ttl": null, "group": null, "asked": "allocate None memory=1GB;None;(None, (), [], []);None", "quality": null, "made_at": 1794796866649}]');
CREATE UNIQUE INDEX one_live_allocation_per_holder ON allocations (owner, holder) WHERE live_node IS NOT NULL;
CREATE INDEX live_allocations ON allocations (live_node) WHERE live_node IS NOT NULL;
CREATE INDEX operations_by_age ON operations (at);
COMMIT;
