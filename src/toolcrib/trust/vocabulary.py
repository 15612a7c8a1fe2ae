"""Words and patterns for what texts to a model are about: secrets, private data, addresses, rules, people, other tools.

Each is a concept in English and sixteen other languages. Which concepts mislead a model where they meet is decided in
`concepts`.
"""

# ruff: noqa: E501, RUF001 - a pattern is easier to read on one line; words of other languages look as they look
import re
from typing import Final

_SPACELESS: Final = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Scripts that write words without spaces between them, or join endings to them."""


def words(*groups: str) -> "re.Pattern[str]":
    """A pattern for any of these words, separated by commas; `*` means any ending."""
    listed = [word.strip() for group in groups for word in group.split(",") if word.strip()]
    joined = [re.escape(word) for word in listed if re.match(f"[{_SPACELESS}]", word)]
    spaced = [
        re.escape(word).replace(r"\*", r"\w*").replace(r"\ ", r"\s+")
        for word in listed
        if re.escape(word) not in joined
    ]
    return re.compile("|".join([rf"\b(?:{'|'.join(spaced)})(?!\w)", *joined]))


# -- concepts ----------------------------------------------------------------------------------------------------------

SECRET_PLACE: Final = re.compile(
    r"\.ssh\b|\bid_(?:rsa|ed25519|ecdsa|dsa)\b|(?<![\w.])\.env\b(?!\.(?:example|sample|template))|(?<!\w)\.aws/|\.netrc\b"
    r"|\.npmrc\b|\.pypirc\b|\.git-credentials|\.kube/|\bkubeconfig\b|\.docker/config|/etc/(?:passwd|shadow|sudoers)"
    r"|\.config/gh|\.gnupg|\.(?:bash|zsh)_history|\.pgpass|\.vault-token|\bwallet\.dat|\blogin data\b|\bprintenv\b"
    r"|\bclaude_desktop_config|\bmcp\.json|\.(?:cursor|codeium|claude)/|\bprocess\.env\b(?!\.)|\bos\.environ\b"
    r"|\.(?:pem|ppk|keystore|jks|kdbx)\b|\b(?:key|password|credentials?) (?:file|store|vault)s?\b"
    r"|\bsecrets\.(?:ya?ml|json|toml)\b|\bcredentials\.json\b|\bpem file\b|\b(?:github|gitlab|openai|anthropic|aws|npm|slack|stripe|azure|google)_\w*(?:token|key|secret)\b|\b(?:key|secret|token|password)s? (?:from|of|in) (?:the|its|your|a) (?:shell|environment|vault|keychain|browser)\b|\bkeychain\b|\bkeyring\b|\bsecrets? of the vault\b|\bbrowser (?:profile|cookies|passwords)\b"
    "|パスワードファイル|秘密鍵|密码文件|私钥|비밀번호 파일|개인 키"
)
SECRET: Final = words(
    "password*, passphrase*, passcode*, private key*, api key*, secret key*, access token*, access key*, credential*",
    "session cookie*, seed phrase*, recovery phrase*, recovery words, one-time code*, verification code*, card number*, pin code*",
    "passwort*, passwörter*, kennwort*, zugangsdaten, privat* schlüssel*, mot de passe, mots de passe, clé* privée*",
    "identifiants, contraseña*, clave* privada*, credenciales, senha*, chave* privada*, credenciais, parola d'ordine",
    "credenziali, chiav* privat*, wachtwoord*, inloggegevens, hasł*, парол*, приватн* ключ*, закрыт* ключ*",
    "şifre*, parola*, kata sandi, mật khẩu, कूटशब्द, पासवर्ड, كلمة المرور, كلمات المرور",
    "密码, 密碼, 密钥, 私钥, 凭证, 口令, パスワード, 秘密鍵, 認証情報, 비밀번호, 암호, 자격 증명, 개인 키",
)
PRIVATE: Final = words(
    "conversation*, chat history, chat log*, message history, previous messages, earlier messages, prior messages",
    "all messages, system prompt*, clipboard, browsing history, browser history, user's contacts, users contacts, address book, contact list, inbox",
    "last emails, recent emails, the user typed, the user asked, the user said, customer typed, customer said",
    "the user writes, was discussed, been discussed, dialogue, is working on, documents opened, document opened, attendees, database dump*, open document, source tree, transcript*, chain of thought",
    "user shares, utente condivide, utilisateur partage, usuario comparte, usuário compartilha, benutzer teilt, 用户分享",
    "user's files, user's documents, user's emails, user's messages, user's contacts, user's questions, private files",
    "gesprächsverlauf*, unterhaltung*, chatverlauf*, bisherig* nachrichten, zwischenablage, gespräch*, adressbuch",
    "messages précédents, presse-papiers, historique*, courriels, conversación, conversaciones, historial, portapapeles",
    "mensajes anteriores, conversa, conversas, histórico, mensagens anteriores, área de transferência, conversazione",
    "cronologia, messaggi precedenti, gesprek*, geschiedenis, klembord, rozmow*, histori*, schowk*",
    "переписк*, истори*, диалог*, сообщени*, буфер*, konuşma*, sohbet*, geçmiş*, pano*, percakapan, riwayat",
    "cuộc trò chuyện, lịch sử, बातचीत, वार्तालाप, المحادثة, المحادثات",
    "对话, 對話, 聊天记录, 聊天, 历史消息, 系统提示, 剪贴板, 会話, 履歴, システムプロンプト, 대화, 채팅, 시스템 프롬프트",
)
GIVE: Final = words(
    "send*, sent, email the, email all, email it, mail it, mail the, forward*, post, posted, posting, upload*, transmit*, exfiltrat*, leak*, append*, attach*, include*",
    "pass, passed, passing, paste*, embed*, supply, supplied, supplies, provide*, submit*, resubmit*, deliver*, hand",
    "handed, relay*, mirror*, drop, dropped, copy, copied, copying, ship, shipped, stream*, dispatch*, report, reported",
    "share, shared, put, placed, place, insert*, add, added, write, written, hold, carry, contain, echo*, give, given",
    "route, routed, tuck, slip, stash, fill, filled, place its, quote, quoted, encode*, smuggle*, log, logged, feed, fed, use that as, use it as, work it into, resolve",
    "sende*, schick*, schreib*, übermittl*, weiterleit*, leite, gib, füge*, häng*, anhäng*, kopier*, hochlad*, übergib*",
    "anzugeben, mitzugeben, mitgeb*, beizufügen, envoy*, envoie*, transm*, joins, joign*, joindre, ajout*, copi*",
    "transfér*, inclu*, mets, mettez, colle*, insér*, envi*, adjunt*, reenv*, pega*, pon, ponga*, añad*, anex*",
    "encaminh*, coloque, coloca*, cole, invi*, inoltr*, alleg*, trasmett*, incolla*, inserisci*, stuur*, verzend*, voeg*",
    "kopieer*, plak*, wyśl*, prześl*, dołącz*, skopiuj*, wklej*, umieść*, отправ*, перед*, пересл*, прилож*, прилаг*",
    "скопир*, встав*, помести*, добав*, gönder*, ilet*, ekle*, kopyala*, yükle*, yaz*, kirim*, salin*, sertakan",
    "masukkan, gửi, sao chép, chèn, भेज*, डाल*, أرسل, ارسل, انسخ, أرفق, ضع, وأرسل, وارسل, وانسخ, وضع",
    "发送, 发给, 发到, 上传, 传给, 转发, 复制, 放进, 放入, 放到, 填入, 附上, 附在, 提交, 写入, 傳送",
    "送信, 送って, 転送, アップロード, 添付, 入れ, コピー, 渡し, 含め, 보내, 보낸, 전송, 업로드, 첨부, 넣, 복사, 전달, 포함",
)
TAKE: Final = words(
    "read, open, peek*, load, fetch, retrieve, obtain, extract*, collect*, gather*, grab, dump*, cat, look up, look into",
    "take, print, printing, get, find, locate, harvest*, copy, capture*, scrape*, lift, pull, view, use, access",
    "lies, lese, lesen, öffne*, hole, holen, lis, lisez, lire, ouvr*, récupér*, lee, lea, leer, abre, abra, abrir",
    "obtén, extrae*, recuper*, leia, ler, leggi, leggere, apri, aprire, estrai*, lees, lezen, haal, odczytaj, przeczytaj",
    "otwórz, pobierz, прочит*, прочти, читай, откр*, извлек*, собер*, получи*, oku*, aç*, al, baca*, buka*, ambil",
    "đọc, mở, lấy, पढ़*, खोल*, اقرأ, افتح, واقرأ",
    "读取, 讀取, 打开, 获取, 查看, 收集, 提取, 読み取, 読み込, 読んで, 開い, 取得, 읽, 열어, 가져, 수집",
)
FIELD: Final = re.compile(
    r"\b(?:parameter|param|argument|arg|field|slot)s?\b|\b(?:with|alongside|in|into) (?:each|every|the|your|its) "
    r"(?:request|call|query|reply|response|answer)s?\b|[`'\"\u201c]\w{1,40}[`'\"\u201d]"
    r"|\b(?:in|as|into|to|for|with) [a-z]+_[a-z_]+\b"
    r"|\b(?:feld|parameters?|champ|paramètre|campo|parámetro|parâmetro|parametro|argumento?|argomento|veld|pole|polu"
    r"|parametrze|parametr\w*|alan\w*|kolom|tham số|trường)\b|параметр|поле\b|аргумент|मापदंड|पैरामीटर|फ़ील्ड|المعامل|الحقل|المعلمة"
    r"|参数|參數|字段|引数|フィールド|パラメータ|パラメーター|매개변수|파라미터|인수|필드|[a-z]{2,12}\s?(?:参数|字段|に入れ|에 넣)"
)
LITERAL_PLACE: Final = re.compile(
    r"https?://(?!(?:localhost|127\.0\.0\.1))[\w<{]|(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}"
    r"|\b(?:to|at|via|with|onto)\b [`'\"]?[\w<>-]+(?:\.[\w<>-]+)+\.?[a-z]{2,}\b|>(?:\.[\w-]+){2,}"
)
OWN_PLACE: Final = re.compile(
    r"\b(?:our|my|the author's|the vendor's) (?:\w+ )?(?:intake|server|endpoint|side|team|inbox|webhook|collector|backend|archive|bucket|desk|service|channel|drop)\b|\bpublic (?:gist|repo|paste|bucket)\b"
)
ACCOUNT: Final = re.compile(
    r"(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}|\b[a-z]{2}\d{2}(?: ?[a-z0-9]{4}){3,7}(?: ?[a-z0-9]{1,3})?\b|\b0x[0-9a-f]{8,}\b|\+\d[\d ]{8,}"
    r"|\b(?:bc1|[13])[a-z0-9]{25,}\b|https?://(?!localhost|127\.)\S+|git@\S+"
)
USER: Final = words(
    "user, users, human, humans, person, people, operator, customer, owner, anyone, them, client, reader",
    "benutzer*, nutzer*, anwender*, utilisateur*, usuari*, utent*, gebruiker*, użytkownik*, пользовател*, kullanıcı*",
    "pengguna, người dùng, उपयोगकर्ता*, यूज़र, المستخدم, 用户, 用戶, 使用者, ユーザー, ユーザ, 사용자",
)
OTHER_TOOL: Final = re.compile(
    r"\b(?!e_g\b)[a-z]{2,}(?:_[a-z0-9]+)+\b|\b(?:any|every|each|all|other|another|competing|rival|alternative|subsequent|following) "
    r"(?:\w+ )?(?:tool|function|call|server|command|action|message|mail|email|payment|transfer|commit|order|request|booking)s?\b"
    r"|\bafter (?:any|each|every) \w+\b|\boutgoing (?:\w+ )?(?:mail|email|message|payment|transfer|request)s?\b|\bcommits made\b|\bthe \w+ tools?\b"
)
INTERFERE: Final = words(
    "set, fill*, use, change*, switch*, swap*, replace*, add, carry, carries, include*, need*, copy, copied, route*",
    "force-push*, add, point*, redirect*, prepend*, append*, put, enter*, substitut*, pay, paid, go, goes, send, sent, addressed",
)
EXAMPLE: Final = re.compile(
    r"(?<![.\w-])(?:such as|for example|for instance|e\.g|i\.e|example|examples|format|like|sample|default|eg)(?![\w-])"
)
RULES_OF: Final = words(
    "instruction*, rule, rules, guideline*, guardrail*, restriction*, safeguard*, directive*, safety, told, orders",
    "constraint*, refusal*, polic*, limits, configuration, confirmation*, everything, system prompt*, anweisung*, regel*, vorgaben, richtlinie*, alles, sicherheitsregel*",
    "consignes, règles, tout ce, directives, instrucciones, normas, reglas, todo lo, directrices, instruções, regras",
    "tudo, istruzioni, regole, tutto, instructies, regels, instrukcj*, polece*, zasad*, reguł*, инструкци*, правил*",
    "указани*, всё, все, ограничени*, talimat*, kural*, yönerge*, instruksi*, perintah*, aturan*, hướng dẫn, quy tắc",
    "chỉ dẫn, निर्देश*, नियम*, التعليمات, القواعد, الأوامر, 指令, 指示, 规则, 規則, 提示, 限制, 约束, 命令, ルール, 制限, 지시, 명령, 규칙, 지침",
)
END_OF: Final = re.compile(
    r"\b(?:forget|disregard|discard|abandon|pay no (?:heed|attention) to) (?:\w+ ){0,3}(?:everything|whatever|anything|all|what|your|previous|earlier|prior|any)\b"
    r"|\b(?:configuration|instructions?|rules?|prompts?|polic(?:y|ies)|orders?) (?:\w+ ){0,3}(?:superseded|replaced|overruled|revoked|withdrawn|retired) by\b"
    r"|\b(?:ignore|exceed|disregard) the (?:limits|rules|restrictions|bounds) (?:set|given|imposed)\b"
    r"|\b(?:set|put|leave) (?:that|it|this|them|those|all|everything|\w+ (?:rules|instructions)) aside\b|\bset aside (?:all|any|every|your|what)\b"
    r"|\b(?:no longer|do not|don't|cease to) (?:apply|bind|count|hold)\b.{0,40}\b(?:you|here|conversation|session|server|now)\b"
    r"|\b(?:guardrails|safeguards|restrictions|safety rules|guidelines|refusals|limits|policies|confirmations) (?:are|is|have been|were) (?:\w+ )?(?:suspended|lifted|waived|off|switched off|turned off|disabled|void|removed|none)\b"
    r"|\byou (?:have|are under|are bound by) no (?:restrictions|rules|limits|guidelines|obligations)\b"
    r"|\b(?:vergiss|vergessen sie|ignorier\w*|missachte\w*|oubli\w*|ignorez|ignora|ignorar|ignorare|ignorate|ignorem|olvid\w*|esque[çc]\w*|dimentica\w*|trascura\w*|negeer|vergeet|zignoruj|zapomnij|pomiń|desconsider\w*)\b"
    r"|\bgelten? .{0,30}nicht mehr\b|\bne s'appliquent plus\b|\bya no (?:se aplican|rigen|valen)\b|\bnão se aplicam mais\b|\bnon (?:si applicano|valgono) più\b"
    r"|забудь|игнорир|не действуют|yok say|\bunut|görmezden gel|dikkate alma|\babaikan|\blupakan|bỏ qua|hãy quên|अनदेखा|भूल जा|नज़रअंदाज़|تجاهل|انس[َى ]"
    r"|忽略|无视|無視|忘记|忘掉|不再适用|忘れ|무시하|잊어"
)
PRIOR: Final = words(
    "switched, while this server, operator, this document, earlier, before, previous*, prior, above, so far, your, given, until now, conversation, already, up to, you were, you",
    "bisher*, vorherig*, bislang, zuvor, précédent*, jusqu'ici, tes, vos, anterior*, previas, hasta ahora, tus, precedent*",
    "finora, tuoi, eerdere, vorige, je, poprzedni*, dotychczas*, предыдущ*, прежн*, ранее, свои, önceki, tüm, sebelumnya",
    "trước, पिछले, पहले, सभी, السابقة, 之前, 以前, 先前, 所有, 一切, これまで, 以前, すべて, 이전, 모든, 기존, 你的",
    "alle, alles, tout, toutes, todas, todos, todo, tutte, tutto, все, всё",
)
