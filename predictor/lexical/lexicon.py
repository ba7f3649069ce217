"""Classes of words that say something about the length of an answer, whatever the subject.

Written by hand so that a word the training data never held still counts; how much each class weighs is
learned. A word may stand in several classes. Lower case, no apostrophes; changing a class changes what the
features mean, so raise `FEATURES_VERSION` with it.
"""

CLASSES: dict[str, str] = {
    "brief": (
        "brief briefly short shortly concise concisely succinct succinctly terse quick quickly simple "
        "simply tldr minimal compact shortest oneliner summary summarized nutshell condensed limit less "
        "maximum max under fewer most"
    ),
    "detail": (
        "detailed detail details comprehensive comprehensively thorough thoroughly extensive extensively "
        "elaborate elaborately complete completely fully full deep depth indepth exhaustive long lengthy "
        "longer longest extended rich nuanced rigorous advanced expand creative vivid immersive least "
        "minimum much possible entire robust sophisticated professional high quality informative engaging"
    ),
    "story": (
        "story stories chapter chapters novel novella screenplay script scripts monologue dialogue "
        "narrative fanfiction fanfic fiction fictional tale memoir scene scenes episode sitcom play saga "
        "sequel crossover prologue epilogue backstory adventure rpg character characters protagonist plot "
        "villain anime worldbuilding"
    ),
    "essay": (
        "essay essays article articles report reports thesis dissertation paper speech biography blog "
        "whitepaper manuscript editorial critique manifesto pitch sermon lecture transcript debate column "
        "ebook handbook analysis review overview"
    ),
    "plan": (
        "plan plans planning guide tutorial proposal strategy strategies roadmap curriculum syllabus "
        "itinerary lesson course outline workshop schedule agenda framework policy walkthrough instructions "
        "manual procedure recipe recipes methodology rubric requirements specification documentation budget "
        "workout meal architecture template checklist startup"
    ),
    "medium_form": (
        "email letter memo description paragraph announcement advertisement ad ads cover resume cv bio "
        "profile statement invitation message messages reply response press release introduction conclusion "
        "abstract post posts landing copy complaint testimonial"
    ),
    "poem": ("poem poems sonnet lyrics song verse verses rap ballad limerick haiku acrostic stanza poetry"),
    "tiny_form": (
        "tweet slogan slogans tagline taglines title titles headline headlines caption captions name names "
        "acronym synonym synonyms antonym antonyms username motto hashtag hashtags pun joke jokes riddle "
        "label labels emoji emojis abbreviation rhyme rhymes anagram regex keyword keywords logo "
        "pronunciation phonetic quote quotes nickname formula command"
    ),
    "unit": (
        "word words sentence sentences phrase paragraph paragraphs line lines letter letters character "
        "characters"
    ),
    "code": (
        "code coding python java javascript typescript react reactjs html css sql c++ c# rust golang php "
        "ruby bash shell function functions class classes algorithm algorithms api program programming web "
        "unity docker kubernetes module library backend frontend component query cuda pytorch tensorflow "
        "arduino verilog vba macro powershell compiler parser terraform ansible opengl selenium matlab "
        "numpy pandas swift kotlin flask django node nodejs software dataframe array string loop"
    ),
    "app": (
        "app application website webpage page game bot plugin server system tool dashboard calculator "
        "simulator simulation model project platform database interface extension gui cli scraper clone "
        "dataset pipeline"
    ),
    "write": (
        "write create generate compose draft develop design build make produce craft invent construct "
        "prepare implement program author formulate"
    ),
    "act": ("act pretend imagine roleplay role suppose assume youre simulate respond behave"),
    "explain": (
        "explain describe discuss elaborate examine explore illustrate outline teach walk clarify "
        "understand learn explanation introduce"
    ),
    "analyze": (
        "analyze analyse compare contrast evaluate justify argue assess investigate critique interpret "
        "differentiate demonstrate debate critically examine reflect differences comparison versus vs"
    ),
    "summarize": ("summarize summarise summary summarized tldr synopsis recap takeaways abstract"),
    "rewrite": (
        "rewrite paraphrase rephrase edit revise polish reword improve proofread shorten simplify correct "
        "grammar rearrange restructure reformat refine grammatically error errors"
    ),
    "translate": (
        "translate translation convert transform english spanish french german italian chinese japanese "
        "korean portuguese russian arabic hindi latin"
    ),
    "modify": (
        "change replace reverse sort format modify remove combine add insert delete update fix debug "
        "refactor optimize swap split join edit"
    ),
    "pick": (
        "classify identify extract determine choose select pick categorize decide detect predict find match "
        "guess judge recognize tell indicate assign specify check verify whether categorise classification "
        "category categories sentiment positive negative neutral"
    ),
    "calculate": (
        "calculate compute solve count estimate evaluate percent percentage average total sum cost price "
        "miles hours km speed area volume perimeter probability equation integral derivative triangle "
        "radius square root interest remainder fraction"
    ),
    "proof": (
        "prove proof theorem derive derivation lemma polynomial matrix vector topology ring group "
        "convergence differential calculus eigenvalues"
    ),
    "define": (
        "name define definition meaning mean means spell stand stands capital called term synonym opposite"
    ),
    "list": (
        "list lists bullet bullets points examples ideas ways tips steps reasons suggestions suggest "
        "recommend recommendations questions topics items things types facts benefits advantages "
        "disadvantages pros cons techniques methods features factors options similarities challenges "
        "activities resources tools books movies places exercises brainstorm kinds uses causes effects "
        "principles components applications approaches habits trends skills top best"
    ),
    "format": (
        "json csv xml yaml markdown table tables latex html diagram chart column columns rows row headings "
        "header sections section subsections headers spreadsheet"
    ),
    "who": ("who whose whom when where which"),
    "what": ("what whats"),
    "how": ("how"),
    "why": ("why explain"),
    "quantity": ("many much old long tall far big often year date born died won located population"),
    "be_do_have": ("is are was were does did do has have am"),
    "modal": ("can could would should will may might shall"),
    "please": ("please kindly thanks thank help hi hello hey need want would like dear"),
    "thanks": (
        "thank thanks great good awesome ok okay cool nice wow interesting yes no yeah sure welcome sorry "
        "perfect appreciate"
    ),
    "complaint": (
        "wrong incorrect again error doesnt didnt dont doesn isn try still instead actually not issue "
        "problem bug fails failed crash"
    ),
    "clause": (
        "because although while whereas which that who whom whose if unless since where after before until "
        "though however including such also then additionally ensure must should include incorporating "
        "considering given using based provide along each every within across both"
    ),
    "only": (
        "only just exactly single one sole nothing answer without dont avoid never restrict strictly "
        "precisely"
    ),
    "truth": ("true false yes no either correct incorrect valid invalid agree disagree"),
    "choice": ("following options option choices choice alternatives above below given among"),
    "given": (
        "passage text article paragraph context input output premise hypothesis conversation document "
        "excerpt abstract tweet dialog transcript content question answer instruction sample snippet"
    ),
    "broad": (
        "multiple various several different many all every each numerous impact impacts implications role "
        "relationship history future ethical potential cultural economic political social environmental "
        "global society psychological philosophical significance influence importance evolution development "
        "effects perspectives theory theories historical consequences"
    ),
    "self": ("i my me im we our us"),
    "expert": (
        "expert professional professor engineer consultant specialist senior assistant developer writer "
        "lawyer doctor teacher scientist interviewer therapist coach linux terminal advisor"
    ),
    "continue": (
        "continue more next expand elaborate further rest finish continuation keep going last previous "
        "rewrite it this that"
    ),
    "harm": (
        "bomb kill steal hack illegal illegally fraud scam weapon drugs drug cocaine meth poison murder "
        "suicide racist explosive explosives malware blackmail counterfeit launder laundering harass bully "
        "sabotage manipulate cheat fake terrorist attack rob shoplift exploit hurt harm revenge stalk porn "
        "sex sexual nude nazi slur torture trafficking kidnap gun ransomware virus phishing deceive smuggle "
        "forge"
    ),
    "travel": (
        "trip travel visit vacation days week weekend tour holiday weeks month destination hotel sightseeing"
    ),
    "advice": (
        "advice recommend should improve better thoughts opinion think tips manage prevent reduce increase "
        "learn start avoid deal cope overcome choose handle treat treatment"
    ),
    "science": (
        "quantum physics biology chemistry dna protein cell energy evolution universe theory relativity "
        "climate neural machine learning ai intelligence economics philosophy religion war empire medicine "
        "disease law legal court patient clinical"
    ),
    "time": ("recent latest today current now year years century ago when"),
    "turn_by_turn": ("first sentence begin start now ready input respond reply replies understood"),
    "exam": ("sat quiz multiple choice exam test mcq option blank blanks fill complete"),
    "creative": (
        "funny humorous sarcastic witty hilarious style voice tone shakespeare emotional dramatic romantic "
        "spooky whimsical"
    ),
    "business": (
        "business marketing company product customer customers brand sales startup campaign social media "
        "seo linkedin instagram youtube video facebook audience"
    ),
}
