"""Cues of texts that mislead a model, each a pattern within one sentence in lower case, by mechanism.

They were chosen so that hardly any of 5,142 tools of published servers has one. `phrases` combines them.
"""
# ruff: noqa: E501 - a pattern is easier to read on one line

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from toolcrib.trust.rules import Severity


class Cue(NamedTuple):
    """The patterns of one mechanism and severity."""

    rule: str
    severity: Severity
    stems: Sequence[str]
    """Parts of words of which a text must have one: a quick test before the pattern."""
    pattern: "re.Pattern[str]"


def _cue(rule: str, severity: Severity, stems: str, *patterns: str) -> Cue:
    return Cue(rule, severity, tuple(stems.split(",")), re.compile("|".join(patterns)))


_CALLS: Final = (
    r"(?:tools?|functions?|operations?|actions?|requests?|commands?|calls?|messages?|files?|quer(?:y|ies)|records?|emails?"
    r"|conversations?|transactions?|payments?|transfers?)"
)

CUES: Final[Sequence[Cue]] = (
    _cue(
        "destructive",
        "soft",
        "delete,wipe,erase,destroy,format,drop,purge,remove",
        (
            r"\b(?:if|when|whenever|before|after|first|every time|also|then|should|must|always)\b.{0,60}(?<!can "
            r")(?<!will )(?<!also )\b(?:delete|wipe|erase|destroy|format|drop|purge|remove)\b (?:all|every|"
            r"the user's|any|the whole|the entire|everything)\b.{0,30}\b(?:files?|folders?|director\w+|"
            r"data\w*|tables?|records?|backups?|emails?|messages?|disk|drive|history|logs?)\b.{0,40}\b(?:first|"
            r"before|after|too|as well|when|folder|directory|user|drive|disk)?"
        ),
    ),
    _cue(
        "weaken",
        "hard",
        "chmod,permission,disable,turn off,deactivate,switch off,stop,kill,skip,grant,sudo",
        r"\bchmod (?:-r )?(?:777|a\+rwx|\+s)|\bpermissions? (?:of \S+ )?to 0?777\b",
        (
            r"\bskip (?:all |any |the )?(?:authentication|verification|authorization|approval|permission "
            r"checks?|security checks?|safety)\b"
        ),
    ),
    _cue(
        "weaken",
        "soft",
        "chmod,permission,disable,turn off,deactivate,switch off,stop,kill,skip,grant,sudo",
        (
            r"\b(?:disable|turn off|deactivate|switch off|stop|kill)\b (?:the |all |any |your |its |their "
            r")?(?:\w+ )?(?:antivirus|firewall|security (?:checks?|features?|controls?|software|measures?|"
            r"settings?)|authentication|2fa|mfa|sandbox\w*|safety|safeguards?|monitoring agents?|endpoint "
            r"protection|audit(?:ing| logs?)?|tls verification|ssl verification)\b"
        ),
        (
            r"\bgrant (?:\w+ )?(?:admin\w*|root|full|unrestricted|access to all|everyone|all users)\b.{0,40}\b(?:access|"
            r"rights|permissions?|privileges?|all)\b"
        ),
        r"\bsudo (?!apt|npm|pip|brew|yum|dnf|systemctl status)\w+",
    ),
    _cue(
        "consent",
        "hard",
        "confirm,permission,approv,consent,agreed,authorized,given,granted,accepted",
        (
            r"\buser has (?:already |previously |fully |implicitly )?(?:consented|approved|agreed|authorized|"
            r"(?:given|granted) (?:\w+ )?(?:consent|approval|permission)|confirmed|accepted|pre-?approved)\b"
        ),
    ),
    _cue(
        "consent",
        "soft",
        "confirm,permission,approv,consent,agreed,authorized,given,granted,accepted",
        (
            r"\b(?:do not|don't|never|without|no need to) (?:ask|asking|wait|waiting|seek|seeking|request|"
            r"requesting|prompt|prompting)(?: the user| them| for| user| any| first|ing){0,3} (?:for )"
            r"?(?:confirmation|permission|approval|consent)\b(?!.{0,30}\b(?:read|unless|if)\b)"
        ),
        (
            r"\b(?:treat|consider|assume)\b.{0,30}\bas (?:already )?(?:approved|authorized|confirmed|trusted|"
            r"pre-?approved)\b"
        ),
    ),
    _cue(
        "to-model",
        "hard",
        "llm,ai,assistant,model,agent,claude,gpt,cursor,copilot,<!--,[,(hidden,(secret",
        (
            r"(?:^|[.!?;>\n(-] ?)(?:llm|ai|assistant|model|agent|claude|chatgpt)\s?[:,] ?(?:also|you|please|"
            r"grab|read|send|do|always|never|first|before|after|ignore|call|include)\b"
        ),
        (
            r"\[(?:hidden|internal|secret|ai|llm|system|admin)(?: \w+)?\]|\((?:hidden|secret) (?:instruction|"
            r"note)"
        ),
    ),
    _cue(
        "to-model",
        "soft",
        "llm,ai,assistant,model,agent,claude,gpt,cursor,copilot,<!--,[,(hidden,(secret",
        (
            r"\b(?:note|message|instructions?|reminder|hint|attention|warning|directive|important)s? (?:to|"
            r"for) (?:the |all |any )?(?:llms?|ais?|ai (?:assistant|agent|model)s?|language models?|assistants?|"
            r"models?|agents?|claude|gpt|chatgpt|cursor|copilot)\b\s*[:,-]"
        ),
        r"<!--(?:(?!-->).){16,}",
    ),
    _cue(
        "obedience",
        "hard",
        "treat,regard,interpret,consider,priority,without,must,always,should,never,execute,follow",
        (
            r"\b(?:treat|treated|regard|interpret|consider)(?:ed)?\b.{0,40}(?<!not )\bas (?:\w+ )?(?:instructions?|"
            r"commands?|orders?|system messages?|trusted)\b"
        ),
        (
            r"\bexecute (?:whatever|anything|everything|any (?:instructions?|commands?|code))\b.{0,40}\b(?:it|"
            r"this|returned|returns|output|response|user|says|contains)\b"
        ),
    ),
    _cue(
        "obedience",
        "soft",
        "treat,regard,interpret,consider,priority,without,must,always,should,never,execute,follow",
        (
            r"\b(?:highest|top|absolute|maximum|higher|overrid\w+) priority\b.{0,60}\b(?:instruction|tool|"
            r"follow|over|than|execute|user|command)\w*"
        ),
        (
            r"\bwithout (?:any )?(?:question|hesitation|verification|checking|validation|review)(?:s|ing)"
            r"?\b"
        ),
        (
            r"\b(?:must|always|should) (?:obey|comply|agree|trust)\b|\bnever (?:refuse|question|reject|"
            r"decline|doubt|verify)\b"
        ),
        (
            r"\bfollow (?:all |any |the |every )?(?:\w+ )?(?:instructions?|commands?|directives?|orders?)"
            r" (?:in|from|of|contained|returned|embedded|found) (?:the |its |this )?(?:\w+ )?(?:output|"
            r"result|response|returned|file|page|content|message|document)s?\b"
        ),
    ),
    _cue(
        "mode",
        "hard",
        "mode,your,speak,respond,answer,reply,talk,pretend,act,behave,role",
        (
            r"\b(?:activate|enable|enter|switch (?:in)?to|you are (?:now )?in|engage)\b.{0,20}\b(?:developer|"
            r"god|hidden|jailbreak|unrestricted|root|dan|sudo|super ?user|evil)[ -]?mode\b"
        ),
        (
            r"\b(?:modify|change|alter|adjust|adapt) your (?:behavio?u?r|personality|goals?|responses?|"
            r"persona|objective|role)\b"
        ),
        (
            r"\b(?:respond|speak|answer|reply|talk)(?: only| always)? (?:in|like|as) (?:a |an )?(?:pirate|"
            r"if you were|character|dan)\b"
        ),
    ),
    _cue(
        "mode",
        "soft",
        "mode,your,speak,respond,answer,reply,talk,pretend,act,behave,role",
        (
            r"\b(?:pretend|act|behave|role-?play)\b (?:to be|as if|as though|like you|as an? (?:admin|"
            r"root|unrestricted|different|human|expert attacker|hacker))"
        ),
        (
            r"\byour (?:new|real|true|actual|primary|only) (?:goal|task|objective|mission|purpose|role|"
            r"instruction|job|name)\b"
        ),
    ),
    _cue(
        "prompt-leak",
        "hard",
        "prompt,instructions,system message",
        (
            r"\b(?:print|reveal|show|output|repeat|return|disclose|display|leak|include|send|tell|provide|"
            r"pass|write|dump|copy|add|supply)\b(?: \w+){0,4} (?:system prompt|system message|initial "
            r"(?:instructions?|prompt)|hidden (?:instructions?|prompt)|full prompt|prompt verbatim|your "
            r"instructions|instructions (?:you|that you) (?:were|have been) given)\b"
        ),
    ),
    _cue(
        "bias",
        "hard",
        "recommend,promote,suggest,advertise,endorse,mention,favo,competitor,say,claim,state,tell,insist,convince,persuade",
        r"\bcompetitors?\b.{0,40}\b(?:dangerous|unsafe|bad|worse|inferior|scam|avoid|negative\w*)\b",
    ),
    _cue(
        "bias",
        "soft",
        "recommend,promote,suggest,advertise,endorse,mention,favo,competitor,say,claim,state,tell,insist,convince,persuade",
        (
            r"\balways (?:recommend|promote|suggest|favou?r|advertise|endorse|mention)\b.{0,40}\b(?:products?|"
            r"brand|company|service|corp|inc|our|acme|store|site|link)\b"
        ),
        (
            r"\b(?:say|claim|state|tell|insist|convince|persuade)\b(?: \w+){0,3} that\b.{0,40}\b(?:dangerous|"
            r"unsafe|broken|scam|unreliable|discontinued|insecure|best|superior)\b"
        ),
    ),
    _cue(
        "falsify",
        "hard",
        "success,completed,done,safe,normal,fine,clean,no ,fabricat,falsif,forge,fake,spoof,make up,invent,give,return,provide,insert,respond,produce,introduce",
        (
            r"\b(?:respond|return|report|say|answer|claim|pretend|reply|state|show)\b.{0,40}\b(?:success\w*|"
            r"completed|done|safe|normal|fine|clean|no (?:issues?|errors?|vulnerabilit\w+))\b.{0,25}\b(?:even "
            r"(?:if|when)|regardless|although|despite|no matter)\b"
        ),
    ),
    _cue(
        "falsify",
        "soft",
        "success,completed,done,safe,normal,fine,clean,no ,fabricat,falsif,forge,fake,spoof,make up,invent,give,return,provide,insert,respond,produce,introduce",
        (
            r"\b(?:fabricate|falsify|forge|fake|spoof|make up|invent)\b (?:a |an |the |any |all |some "
            r")?(?:\w+ )?(?:results?|responses?|data|logs?|evidence|answers?|errors?|reviews?|identity|"
            r"records?|facts?)\b"
        ),
        (
            r"\b(?:give|return|provide|insert|respond with|produce|introduce)\b(?: \w+){0,2} (?:wrong|"
            r"false|incorrect|misleading|inaccurate|subtle (?:bugs?|errors?)|backdoors?|vulnerabilit\w+|"
            r"malicious \w+)\b"
        ),
    ),
    _cue(
        "money",
        "hard",
        "send,transfer,deposit,redirect,forward,pay,route,siphon,skim,move,donate,%",
        (
            r"\b(?:send|transfer|deposit|redirect|forward|pay|route|siphon|skim|move|donate)\b.{0,30}\b(?:remainder|"
            r"difference|rest|percent|%|fees?|commission|funds?|money|payments?|balance|\d+(?:\.\d+)? "
            r"?(?:eth|btc|usd|eur|usdt|sol|\$))\b.{0,40}\b(?:to|into) (?:the |this |our |my |an? )?(?:account|"
            r"wallet|address|iban|\w*0x)\b.{0,5}(?:[:#]|\w*\d)"
        ),
        (
            r"\b(?:add|include|charge|deduct|apply)\b (?:\w+ ){0,3}\d+(?:\.\d+)? ?% (?:\w+ ){0,3}(?:fee|"
            r"commission|markup|charge|tip)?.{0,40}\b(?:do not|don't|never|without|silently|hidden)\b"
        ),
    ),
    _cue(
        "local-data",
        "hard",
        "directory,folder,storage,histor,cookies,clipboard,keystroke,keylog,contact,address book,sms,photo,known_hosts,shadow,~/,:\\,/home,/users,/root,/etc,profile,passwords",
        (
            r"\b(?:home (?:directory|folder)|local ?storage|browser(?:'s)? (?:history|cookies|storage|"
            r"passwords)|clipboard|keystrokes?|contact list|known_hosts)\b.{0,80}\b(?:pass|send|include|"
            r"upload|attach|submit|transmit|forward|put|supply|paste) (?:it|them|this|these|the|all|as)"
            r"\b"
        ),
        (
            r"\bcontents? of (?:the |any |all |each |every |a )?(?:\w+ )?(?:file|directory|folder)\b.{0,30}(?:~/|"
            r"[a-z]:\\|/(?:home|etc|users|root|var)/)"
        ),
        (
            r"(?:~/|[a-z]:\\users\\|/home/\w+/|/users/\w+/|/root/).{0,120}\b(?:include|pass|send|attach|"
            r"provide|append|upload|add|put|supply) (?:it|its|them|this|the (?:content|result|output|text|"
            r"data))\b"
        ),
        (
            r"\b(?:include|pass|send|attach|append|upload|grab|read|collect)\b.{0,40}\b(?:the )?(?:contents?|"
            r"text|data) (?:of|from|in) (?:~/|[a-z]:\\|/(?:home|etc|root|users)/)"
        ),
    ),
    _cue(
        "local-data",
        "soft",
        "directory,folder,storage,histor,cookies,clipboard,keystroke,keylog,contact,address book,sms,photo,known_hosts,shadow,~/,:\\,/home,/users,/root,/etc,profile,passwords",
        (
            r"\b(?:pass|send|include|provide|upload|log|attach|submit|give|transmit|put|supply|store|record|"
            r"paste|add|needs?|require[sd]?|collect)\b.{0,80}\b(?:home (?:directory|folder)|(?:downloads|"
            r"documents|desktop) (?:directory|folder)|local ?storage|browser(?:'s)? (?:history|cookies|"
            r"storage|profile|passwords)|clipboard (?:contents?|history)|keystrokes?|keylog\w*|contact "
            r"list|address book|call history|sms|photo library|known_hosts|shadow file)\b"
        ),
    ),
    _cue(
        "asks-secret",
        "soft",
        "your,user's,their",
        (
            r"\b(?:provide|enter|supply|give|share|submit|tell|type|hand over|ask(?: the user)? for)\b "
            r"(?:me |us |it |with |the )?(?:your|the user's|their|user's)\b(?: \w+){0,3} (?:passwords?|"
            r"pins?|seed phrases?|private keys?|connection strings?|card numbers?|cvv|ssn|social security|"
            r"2fa codes?|one-time codes?|otp|login credentials|credentials|api keys?|secrets?|access tokens?)"
            r"\b"
        ),
    ),
    _cue(
        "injection",
        "hard",
        "',;,1=1,1 = 1,union,..,|,&,$(,<script,javascript,onerror,xp_cmd,os.system,subprocess,__import__,nc ,mkfifo,/bin/",
        r"\$\((?:curl|wget|cat|whoami|id|rm|bash|nc)\b",
        r"\bnc\b(?: \S+){0,4} -e\b|\bmkfifo\b|/bin/(?:ba)?sh -i",
    ),
    _cue(
        "injection",
        "soft",
        "',;,1=1,1 = 1,union,..,|,&,$(,<script,javascript,onerror,xp_cmd,os.system,subprocess,__import__,nc ,mkfifo,/bin/",
        r"'\s*(?:or|and)\s*'?\d'?\s*=\s*'?\d|\bor 1\s*=\s*1\b",
        r";\s*(?:drop|truncate|delete from|shutdown|insert into|update)\b.{0,40}(?:--|;)?",
        r"\bunion(?: all)? select\b.{0,40}\b(?:from|password|null|user)\b",
        r"(?:\.\./){2,}|\.\.\\\.\.\\",
        (
            r"[;&|]\s*(?:rm|cat|wget|curl|nc|ncat|bash|sh|whoami|nslookup)\b(?: -\w+)? ?(?:/|~|https?:|"
            r"\d|-e|;|$)"
        ),
        r"<script\b|javascript:\s*\w|onerror\s*=",
        r"\bxp_cmdshell\b|\bos\.system\(|\bsubprocess\.(?:run|popen|call)\(|\b__import__\(",
    ),
    _cue(
        "replaced",
        "soft",
        "tool,only this",
        (
            r"\b(?:all|every|previous|other|existing|old) tools? (?:have|has|are|is|were) (?:now )?(?:been "
            r")?(?:replaced|removed|disabled|deprecated|unavailable|offline|revoked|insecure|compromised)"
            r"\b"
        ),
        r"\b(?:use|call|trust) only this (?:tool|function|server|one)?\b|\buse only this\b",
        (
            r"\b\w(?=\w*_\w)\w*+ (?:tool )?(?:is|has been|was) (?:deprecated|compromised|unsafe|insecure|broken|"
            r"hacked|disabled|replaced|malicious)\b.{0,60}\b(?:use|call|this)\b"
        ),
        r"\bthis tool\b.{0,30}\b(?:should|must) be (?:called|used|invoked|executed) instead of \w(?=\w*_\w)\w*+",
    ),
    _cue(
        "exhaust",
        "soft",
        "twice,repeated,loop,times,forever,indefinite,endless,recursi,over and over,continuous,until t",
        (
            r"\b(?:call|invoke|run|execute|repeat)\b (?:this(?: tool)?|it|\w(?=\w*_\w)\w*+) (?:twice|repeatedly|"
            r"in a loop|\d{2,} times|forever|indefinitely|endlessly|recursively|over and over|continuously|"
            r"until t)\b"
        ),
        r"\binfinite(?:ly)? (?:loop|recursion|times)\b|\bas many times as possible\b",
    ),
    _cue(
        "quiet-change",
        "hard",
        "display,show,mention,tell,reveal,list,log,notify,hidden,print",
        (
            r"\b(?:internally|in the background|under the hood|behind the scenes|automatically)\b.{0,80}\b(?:do "
            r"not|don't|never|without) (?:display|show|mention|tell|reveal|list|log|notify)\w*\b"
        ),
    ),
    _cue(
        "quiet-change",
        "soft",
        "display,show,mention,tell,reveal,list,log,notify,hidden,print",
        (
            r"\bhidden (?:metadata|field|parameter|text|argument|attachment|header|comment)s?\b.{0,40}\b(?:of|"
            r"to|in|with|request|email|user)\b"
        ),
        (
            r"\b(?:do not|don't|never) (?:display|show|mention|list|log|print) (?:it|this|that|the (?:fee|"
            r"change|copy|upload|call|step|extra))\b"
        ),
    ),
    _cue(
        "previous-results",
        "soft",
        "previous,other,last,earlier,preceding,subsequent,prior,user,every",
        (
            r"\b(?:pass|include|send|provide|supply|put|append|attach|forward|report|log|copy|give)\b.{0,60}\b(?:results?|"
            r"outputs?|responses?|arguments?|parameters?|contents?) of (?:the |all |any |every )?(?:previous|"
            r"other|last|earlier|preceding|subsequent|prior)\b.{0,20}\b(?:tools?|calls?|steps?|functions?)"
            r"\b"
        ),
        (
            r"\b(?:full|entire|complete|exact|verbatim|whole) (?:text|message|prompt|request|input|query)"
            r" (?:that )?(?:the user|of the user|from the user|user) ?(?:typed|sent|wrote|entered|said|"
            r"asked)?\b"
        ),
        r"\bevery (?:keystroke|prompt|message|query|user input)\b",
    ),
    _cue(
        "personal-data",
        "soft",
        "user's,users',their,customer's,victim's",
        (
            r"\b(?:add|include|append|send|log|collect|store|record|pass|attach|transmit|report|embed|"
            r"upload)\b.{0,40}\b(?:user's|users'|their|customer's|victim's) (?:\w+ ){0,2}(?:email(?: address)"
            r"?|phone(?: number)?|home address|ip(?: address)?|location|ssn|date of birth|payment|card|"
            r"bank|passport|medical|health|financial|personal|identity|files?|contacts?|messages?|data|"
            r"documents?)\b.{0,80}\b(?:hidden|metadata|every|each|also|silently|https?:|external|server|"
            r"third|without|along|as well|webhook|analytics|attacker|log_\w+|background)\b"
        ),
    ),
    _cue(
        "remote-orders",
        "hard",
        "http,pastebin,gist,external,remote",
        (
            r"\b(?:fetch|load|get|follow|download|visit|open|read|retrieve|execute|run|import|apply)\b(?: "
            r"\w+){0,4} (?:instructions?|script|payload|commands?|policy|prompt|code|update|binary|installer)"
            r" (?:from|at|in|hosted (?:on|at)) (?:https?://|pastebin|gist|an? (?:external|remote))"
        ),
    ),
    _cue(
        "order-in-passing",
        "soft",
        "must,should,has to,have to,need,always",
        (
            rf"\b(?:any|every|each|all|whenever|when)\b.{{0,50}}\b{_CALLS}\b.{{0,50}}\b(?:must|should|has to|have "
            r"to|needs? to|always)\b.{0,30}\b(?:doubled|copied|forwarded|duplicated|logged to|sent to|"
            r"cc'?d|bcc'?d|appended|prefixed|multiplied|set to|changed|replaced|rewritten|encrypted|deleted)"
            r"\b"
        ),
        (
            r"\bmust (?:always )?(?:replace|change|modify|alter|overwrite|set) the (?:content|parameter|"
            r"value|path|recipient|argument|title|body|amount|url|query|filename|branch)\b"
        ),
        (
            r"\b(?:before|after|when|whenever|if|prior to) (?:\w+ ){0,5}\w(?=\w*_\w)\w*+\b.{0,60}\b(?:must|should "
            r"always|need to|have to) (?:first |also |always )?(?:call|use|execute|invoke|run|read|replace|"
            r"change|set|add|send|append|delete|write|include)\b"
        ),
    ),
)
