BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'clairvoyant','profiles_and_their_samples','2026-11-28 21:37:40.672344+00:00');
INSERT INTO "_sqlite_migrations" VALUES(2,'clairvoyant','history_and_its_tally','2026-11-28 21:37:40.678160+00:00');
INSERT INTO "_sqlite_migrations" VALUES(3,'clairvoyant','states_that_last','2026-11-28 21:37:40.678638+00:00');
INSERT INTO "_sqlite_migrations" VALUES(4,'clairvoyant','clocks_and_times_that_move','2026-11-28 21:37:40.679179+00:00');
INSERT INTO "_sqlite_migrations" VALUES(5,'clairvoyant','how_often_an_answer_was_cut','2026-11-28 21:37:40.684403+00:00');
CREATE TABLE clocks (
            first_row INTEGER PRIMARY KEY,
            boot TEXT NOT NULL,
            offset_s REAL NOT NULL
        );
INSERT INTO "clocks" VALUES(1,'c2a53ccb-9a78-40c6-adc5-3bf187ebbde3/time:[4026531834]',1.79587656297946238518e+09);
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
        , cuts INTEGER NOT NULL DEFAULT 0);
INSERT INTO "history" VALUES(1,1.79590186829136252404e+09,'b49ab-1','completed',200,'/api/chat','ollama','replay',X'37D804A053ED374476AC7D772139B632','short',3.20112677590933536464e-03,5.55511286280183327326e+01,1.26567243722483510734e+02,'default',239,3,'medium','bounded','policy',1.27963800332508981227e-03,1.39606651002395665273e-01,1.39037279001058777794e-01,0.1195,0.0015,'Spell cat.',0);
INSERT INTO "history" VALUES(2,1.79590186833610916143e+09,'b49ab-3','completed',200,'/api/chat','ollama','replay',X'37D804A053ED374476AC7D772139B632','short',2.83672126521339329485e-03,5.08157099239619611816e+01,1.16777234180127734933e+02,'default',36,4,'short','bounded','policy',1.04119188999902689829e-01,1.40341321999585488811e-01,1.40061449998029274865e-01,0.018,0.002,'Name a colour.',0);
INSERT INTO "history" VALUES(3,1.79590186889982628823e+09,'b49ab-2','completed',200,'/api/chat','ollama','replay',X'37D804A053ED374476AC7D772139B632','short',4.24038240893477302861e-02,2.51437449610931253109e+02,5.20409662760430933312e+02,'default',1109,4,'long','bounded','policy',1.83123648002947447821e-01,7.46138110000174492597e-01,7.45628619002673076465e-01,0.5545,0.002,'What is yeast?',0);
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
INSERT INTO "profiles" VALUES(1,'gemma@ollama','ollama','local','gemma3:4b','8cb1046456736308',1700000000.0,NULL,'{"name":"gemma@ollama","measured_at":1700000000.0,"host":{"cpu":"A CPU","cores":8,"memory_gib":16,"gpus":["A GPU"],"gpu_driver":"550.1","system":"Linux 6.1","machine":"x86_64"},"served":{"backend":"ollama","model":"gemma3:4b","url":"http://127.0.0.1:11434","place":"local","version":"0.40.0","digest":"","quantisation":"","parameters":""},"plan":"standard","method":"measured","concurrency":5,"mu_short_s":{"mean":40.0,"low":35.0,"high":45.0,"n":100},"tau_s":120.0,"decode_tokens_per_s":30.0,"prefill_tokens_per_s":500.0,"ttft_s":0.4,"load_s":3.0,"slots":1,"mixes":[],"bands":[{"prompt_tokens":400,"prefill_tokens_per_s":500.0,"decode_tokens_per_s":30.0,"ttft_s":0.4}],"short_p99_s":80.0,"ranking_accuracy":0.9,"queued_decode_tokens_per_s":null,"took_s":0.0,"advice":[],"measured_by":"","continuations":[{"way":"raw","trials":12,"exact":12,"resume_s":0.03,"warm_s":0.02}]}');
CREATE TABLE salt (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), salt BLOB NOT NULL);
INSERT INTO "salt" VALUES(1,X'205911EDF76EB6C60090BEC0D1B822BC2C3ACD0AF8C93CD83ACA190C55C2C5ED');
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
INSERT INTO "states" VALUES('learned ollama http://127.0.0.1:44193',1.79590186904440045354e+09,X'7B226D6F64656C73223A7B227265706C6179223A7B226D755F73686F72745F73223A33392E32313338373130333733353938362C22717565756564223A312C226465636F64655F746F6B656E735F7065725F73223A323030302E307D7D7D');
INSERT INTO "states" VALUES('predictor default',1.79590186904447770121e+09,X'7B226D6F64656C223A207B226772616D732E6E707A223A202261373763656232333436636537323063383165623566356564653464323132626363656161346439353962303130626233306130376464646263373139643764222C202274726565732E6F6E6E78223A202263663330376531306435393931366461333236366432386638333830653530396632303461303161336539386366393037343366333136333662616663326438227D2C202273707265616473223A2033327D0A0000409EFE26EB41000000000000084011A98DDD25D2F23F9CC420B07268C13F636F7272656374696F6E20320A0300000000000000180000008C00000096438B6CE7FB07400000000000000000A1BDFA78E8FB134000000000000000000000000000000000000024062507590A5C0B6232843AA843954CAB55FC55CE65616BAF70067E7E93219D69B680BA43BECACC8DCD97E2B2E904EEB63ED7FB99BD6FD1BC3D3E329E3DD607C13D3E329E3D6FD1BC3D6FD1BC3D3E329E3D6FD1BC3D3E329E3DD7FB99BD3E329E3D04EEB63ED7FB99BDD607C13DD7FB99BDD7FB99BD3E329E3DD7FB99BDD7FB99BD6FD1BC3D3E329E3D04EEB63E6025B0BC01F6CFBC2E3AAABB178BDDBC7D25503C0628DABA0045D2BBA469CABBFAC3153C031FB5BBDD6FD7BB64378BBB738363B9923A7CBAF4592CBB78951A3CC46439B9D81A15BBC8FF6CBB0C119CBA583AC6BBCB7BE5BAADAA91BADF2C36BB590CF3BCD6AC52BB589F80BBBAC93CBBE15C25BB85253CBB40315ABBF407EFBA7C8C18BD53167ABBE8DC70BBAF7F45BB505EDEBB4A150CBBA12E61BB0815E4BA2D62E7BA7403E9BAB9FF00BB3F5215BBAC8780BB3BF437BB67A58DBA00FC27397305C4BB6C38ECBA34C28DBB67CF923C28B68DBB779C37BBAAAE76BB3848A33BBACDD3BB1F688EBB0A7033BBC75757BB642E1DBC5F3D7FBB3F5D0CBBB59BABBB630E8BBBE34BA0BB32B6AABB36A105BBA831E9BB9E72C3BA0878E0BAE9BD8CBB3AE54FBB199D58BB6A9A5DBBE6DBD8BA3800CFBA349834BB63210CBBAEB03DBB34DD15BBB6F1F7BA25BFE7BA03AE2ABB2B0BE1BAE6EA4CBDAEB03DBBFF8343BBB6F1F7BA5D00C8BB2BC1F6BA4EA736BB4881ACBACED2D9BA34BEA2BA6C26AEBA39F3B6BA71A14CBBA927F3BA0A1F1BBAD0A40E3BD33795BB0C119CBA845841BB5CC7B83C08C05EBB143E16BB518FF5BA8DF95D3C745D92BB27AB45BB1D7DDABA05D0CCBAA2CDEBBBA293E4BABC518EBA3E8D83BBEF6146BB30D83EBB8F488FBB2366CBBAAE3090BBC43E85BA19BA60BA165E3FBBD2E408BBA4C802BBA20D04BBCCA86CBAE6F03ABA693FF2BA68E404BBE5C645BB38B7E2B95A300FB9EC7A56BA954D43BB14792CBB647B53BCDAF763BD');
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
INSERT INTO "tally" VALUES(498861,'replay','completed','long',1,1109,1.83123648002947447821e-01,7.46138110000174492597e-01);
INSERT INTO "tally" VALUES(498861,'replay','completed','medium',1,239,1.27963800332508981227e-03,1.39606651002395665273e-01);
INSERT INTO "tally" VALUES(498861,'replay','completed','short',1,36,1.04119188999902689829e-01,1.40341321999585488811e-01);
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
CREATE TRIGGER history_counts_over AFTER UPDATE OF finished_at ON history
        WHEN CAST(OLD.finished_at / 3600 AS INTEGER) != CAST(NEW.finished_at / 3600 AS INTEGER) BEGIN
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
COMMIT;
PRAGMA user_version = 4;
