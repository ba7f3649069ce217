BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'clairvoyant','profiles_and_their_samples','2026-11-28 21:37:32.026761+00:00');
INSERT INTO "_sqlite_migrations" VALUES(2,'clairvoyant','history_and_its_tally','2026-11-28 21:37:32.039968+00:00');
INSERT INTO "_sqlite_migrations" VALUES(3,'clairvoyant','states_that_last','2026-11-28 21:37:32.040494+00:00');
CREATE TABLE history (
            id INTEGER PRIMARY KEY,
            finished_at REAL NOT NULL,
            request TEXT NOT NULL,
            outcome TEXT NOT NULL,
            status INTEGER NOT NULL,
            endpoint TEXT NOT NULL,
            backend TEXT NOT NULL,
            model TEXT NOT NULL,
            client BLOB NOT NULL,
            predicted_class TEXT NOT NULL,
            p_long REAL NOT NULL,
            expected_tokens REAL NOT NULL,
            q90_tokens REAL NOT NULL,
            source TEXT NOT NULL,
            tokens INTEGER,
            prompt_tokens INTEGER,
            length_class TEXT NOT NULL,
            policy TEXT NOT NULL,
            dispatched_by TEXT NOT NULL,
            waited_s REAL NOT NULL,
            sojourn_s REAL NOT NULL,
            ttft_s REAL,
            decode_s REAL,
            prefill_s REAL,
            prompt TEXT
        );
INSERT INTO "history" VALUES(1,1.79590185777099370953e+09,'b49a1-1','completed',200,'/api/chat','ollama','replay',X'8EAF9DFE2AB2836FC874081E13843D51','short',2.83672126521339329485e-03,5.08157099239619611816e+01,1.16777234180127734933e+02,'default',36,4,'short','bounded','policy',6.06551002420019358396e-04,0.0508328790019732,5.05109080004331190139e-02,0.018,0.002,'Name a colour.');
INSERT INTO "history" VALUES(2,1.79590185840797257428e+09,'b49a1-2','completed',200,'/api/chat','ollama','replay',X'8EAF9DFE2AB2836FC874081E13843D51','short',6.10727631768435141879e-02,3.0002290157210171628e+02,6.10963918937971698155e+02,'default',1109,4,'long','bounded','policy',4.36495000030845403671e-04,5.6901127899982384406e-01,5.6888075599999865517e-01,0.5545,0.002,'What is yeast?');
INSERT INTO "history" VALUES(3,1.79590185854039812093e+09,'b49a1-3','completed',200,'/api/chat','ollama','replay',X'8EAF9DFE2AB2836FC874081E13843D51','short',4.13437066938426855955e-03,6.71360761708306341688e+01,1.4895616538660013361e+02,'default',239,3,'medium','bounded','policy',5.68679890999192139133e-01,7.00593506000586785376e-01,0.700262718997692,0.1195,0.0015,'Spell cat.');
CREATE TABLE profiles (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            backend TEXT NOT NULL,
            place TEXT NOT NULL,
            model TEXT NOT NULL,
            host TEXT NOT NULL,
            measured_at REAL NOT NULL,
            chosen_at REAL,
            record TEXT NOT NULL
        );
INSERT INTO "profiles" VALUES(1,'gemma@ollama','ollama','local','gemma3:4b','8cb1046456736308',1700000000.0,NULL,'{"name":"gemma@ollama","measured_at":1700000000.0,"host":{"cpu":"A CPU","cores":8,"memory_gib":16,"gpus":["A GPU"],"gpu_driver":"550.1","system":"Linux 6.1","machine":"x86_64"},"served":{"backend":"ollama","model":"gemma3:4b","url":"http://127.0.0.1:11434","place":"local","version":"0.40.0","digest":"","quantisation":"","parameters":""},"plan":"standard","method":"measured","concurrency":5,"mu_short_s":{"mean":40.0,"low":35.0,"high":45.0,"n":100},"tau_s":120.0,"decode_tokens_per_s":30.0,"prefill_tokens_per_s":500.0,"ttft_s":0.4,"load_s":3.0,"slots":1,"mixes":[],"bands":[{"prompt_tokens":400,"prefill_tokens_per_s":500.0,"decode_tokens_per_s":30.0,"ttft_s":0.4}],"short_p99_s":80.0,"ranking_accuracy":0.9,"queued_decode_tokens_per_s":null,"took_s":0.0,"advice":[],"measured_by":""}');
CREATE TABLE salt (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), salt BLOB NOT NULL);
INSERT INTO "salt" VALUES(1,X'5DF977336FCD789362922FCABDE6FE962585D6269C1B4B032506905A797C68CE');
CREATE TABLE samples (
            profile INTEGER NOT NULL REFERENCES profiles ON DELETE CASCADE,
            number INTEGER NOT NULL,
            record TEXT NOT NULL,
            PRIMARY KEY (profile, number)
        ) WITHOUT ROWID;
INSERT INTO "samples" VALUES(1,0,'{"phase":"service","question":"a colour","prompt_tokens":5,"tokens":9,"sent_s":0.0,"ttft_s":0.1,"sojourn_s":0.5,"decode_s":null,"prefill_s":null,"capped":false,"counted":true,"p_long":null,"load_s":null}');
CREATE TABLE states (
            name TEXT PRIMARY KEY,
            saved_at REAL NOT NULL,
            state BLOB NOT NULL
        ) WITHOUT ROWID;
INSERT INTO "states" VALUES('learned ollama http://127.0.0.1:33147',1.7959018586236212253e+09,X'7B226D6F64656C73223A7B227265706C6179223A7B226D755F73686F72745F73223A302E302C22717565756564223A302C226465636F64655F746F6B656E735F7065725F73223A323030302E303030303030303030303030327D7D7D');
INSERT INTO "states" VALUES('predictor default',1.79590185862369465822e+09,X'7B226D6F64656C223A207B226772616D732E6E707A223A202261373763656232333436636537323063383165623566356564653464323132626363656161346439353962303130626233306130376464646263373139643764222C202274726565732E6F6E6E78223A202263663330376531306435393931366461333236366432386638333830653530396632303461303161336539386366393037343366333136333662616663326438227D2C202273707265616473223A2033327D0A0000409EFE26EB410000000000000840898CFB37F3ECF13F9CC420B07268C13F636F7272656374696F6E20320A0300000000000000180000008C00000096438B6CE7FB07400000000000000000A1BDFA78E8FB134000000000000000000000000000000000000024062507590A5C0B6232843AA843954CAB55FC55CE65616BAF70067E7E93219D69B680BA43BECACC8DCD97E2B2E904EEB63ED8FB99BD71D1BC3D3E329E3DD707C13D3E329E3D71D1BC3D71D1BC3D3E329E3D71D1BC3D3E329E3DD8FB99BD3E329E3D04EEB63ED8FB99BDD707C13DD8FB99BDD8FB99BD3E329E3DD8FB99BDD8FB99BD71D1BC3D3E329E3D04EEB63E5F25B0BC02F6CFBC2E3AAABB168BDDBC7E25503C0528DABA0045D2BBA669CABBFBC3153C021FB5BBDD6FD7BB63378BBB728363B9913A7CBAF4592CBB78951A3CC36439B9D71A15BBC8FF6CBB0B119CBA573AC6BBCA7BE5BAACAA91BAE02C36BB590CF3BCD6AC52BB589F80BBBAC93CBBE05C25BB84253CBB41315ABBF307EFBA7E8C18BD50167ABBE9DC70BBAE7F45BB505EDEBB4A150CBBA12E61BB0715E4BA2E62E7BA7303E9BAB8FF00BB3F5215BBAD8780BB3AF437BB68A58DBA00FC27397305C4BB6B38ECBA34C28DBB67CF923C28B68DBB779C37BBA8AE76BB3748A33BBACDD3BB1F688EBB0A7033BBC85757BB652E1DBC5F3D7FBB405D0CBBB49BABBB620E8BBBE34BA0BB33B6AABB36A105BBA831E9BB9E72C3BA0978E0BAE9BD8CBB3AE54FBB1A9D58BB6A9A5DBBE7DBD8BA3900CFBA349834BB63210CBBAFB03DBB33DD15BBB6F1F7BA25BFE7BA03AE2ABB2A0BE1BAE9EA4CBDAFB03DBBFD8343BBB6F1F7BA5C00C8BB2BC1F6BA4FA736BB4881ACBACED2D9BA34BEA2BA6B26AEBA3AF3B6BA70A14CBBAA27F3BA0A1F1BBAC0A40E3BD23795BB0B119CBA825841BB5CC7B83C08C05EBB133E16BB518FF5BA8FF95D3C735D92BB26AB45BB1D7DDABA05D0CCBAA2CDEBBBA293E4BABB518EBA3D8D83BBEE6146BB30D83EBB8F488FBB2266CBBAAE3090BBC43E85BA19BA60BA165E3FBBD2E408BBA4C802BBA10D04BBCBA86CBAE6F03ABA683FF2BA68E404BBE4C645BB37B7E2B95A300FB9EA7A56BA964D43BB14792CBB657B53BCD9F763BD');
CREATE TABLE tally (
            hour INTEGER NOT NULL,
            model TEXT NOT NULL,
            outcome TEXT NOT NULL,
            length_class TEXT NOT NULL,
            requests INTEGER NOT NULL,
            tokens INTEGER NOT NULL,
            waited_s REAL NOT NULL,
            sojourn_s REAL NOT NULL,
            PRIMARY KEY (hour, model, outcome, length_class)
        ) WITHOUT ROWID;
INSERT INTO "tally" VALUES(498861,'replay','completed','long',1,1109,4.36495000030845403671e-04,5.6901127899982384406e-01);
INSERT INTO "tally" VALUES(498861,'replay','completed','medium',1,239,5.68679890999192139133e-01,7.00593506000586785376e-01);
INSERT INTO "tally" VALUES(498861,'replay','completed','short',1,36,6.06551002420019358396e-04,0.0508328790019732);
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
CREATE INDEX profiles_fit ON profiles (host, backend, place, measured_at);
CREATE INDEX history_time ON history (finished_at);
CREATE INDEX history_class ON history (length_class, finished_at, sojourn_s, waited_s);
CREATE INDEX history_client ON history (client, finished_at);
CREATE TRIGGER history_counts_in AFTER INSERT ON history BEGIN
            INSERT INTO tally
            VALUES (
                CAST(NEW.finished_at / 3600 AS INTEGER), NEW.model, NEW.outcome, NEW.length_class,
                1, COALESCE(NEW.tokens, 0), NEW.waited_s, NEW.sojourn_s
            )
            ON CONFLICT DO UPDATE SET
                requests = requests + 1,
                tokens = tokens + excluded.tokens,
                waited_s = waited_s + excluded.waited_s,
                sojourn_s = sojourn_s + excluded.sojourn_s;
        END;
CREATE TRIGGER history_counts_out AFTER DELETE ON history BEGIN
            UPDATE tally SET
                requests = requests - 1,
                tokens = tokens - COALESCE(OLD.tokens, 0),
                waited_s = waited_s - OLD.waited_s,
                sojourn_s = sojourn_s - OLD.sojourn_s
            WHERE hour = CAST(OLD.finished_at / 3600 AS INTEGER) AND model = OLD.model
                AND outcome = OLD.outcome AND length_class = OLD.length_class;
            DELETE FROM tally
            WHERE hour = CAST(OLD.finished_at / 3600 AS INTEGER) AND model = OLD.model
                AND outcome = OLD.outcome AND length_class = OLD.length_class AND requests <= 0;
        END;
COMMIT;
PRAGMA user_version = 3;
