"""The kind of an answer, by rule: date, number, name or other.

date      a year from 1000 to 2099 in exactly four digits (in Thai to 2599); digits with a hyphen, slash or full stop
          between them; digits before a sign for year, month or day in Chinese, Japanese or Korean; a month's name
          beside a digit; a month's name alone
number    any other answer with a digit and no capitalised word before it; an answer that begins with a number word
name      every word of more than three letters begins with a capital letter, and one word does; in a script without
          capital letters: a dot between the parts of a foreign name, or brackets of a title
other     the rest

No word may follow a year, except a word for "year" or an era: "1500 soldiers" is a number. In Swahili no word may
precede it either: a numeral follows its noun there. No Chinese, Japanese, Korean or Thai letter may follow directly.

Digits of every script count. WORDS has the month names and number words of 26 languages. Chinese, Japanese and Korean
write months with a sign, Vietnamese with a word. Other languages are judged by digits and capital letters.

Two limits: German capitalises nouns, so a noun counts as a name there. Scripts without capital letters (Arabic,
Bengali, Chinese, Hindi, Thai, ...) hardly mark names, so most names are `other` there.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

from evaluator.core.text import code_of

_LOOKED_AT = 200
# For each language: month names, words for "year" and eras, number words from two. A star ends a stem.
WORDS: Mapping[str, tuple[str, str, str]] = {
    "ar": (
        "يناير فبراير مارس أبريل إبريل مايو يونيو يوليو أغسطس سبتمبر أكتوبر نوفمبر ديسمبر", "م هـ ق.م عام سنة",
        "اثنان اثنين اثنتان ثلاثة ثلاث أربعة أربع خمسة خمس ستة ست سبعة سبع ثمانية ثماني تسعة تسع عشرة عشر عشرون عشرين "
        "ثلاثون ثلاثين مئة مائة ألف مليون",
    ),
    "bn": (
        "জানুয়ারি জানুয়ারী ফেব্রুয়ারি ফেব্রুয়ারী মার্চ এপ্রিল মে জুন জুলাই আগস্ট সেপ্টেম্বর অক্টোবর নভেম্বর ডিসেম্বর",
        "সাল* সন খ্রিস্টাব্দ* খ্রিষ্টাব্দ* খ্রিস্টপূর্ব*",
        "দুই দুটি দুইটি তিন তিনটি চার চারটি পাঁচ পাঁচটি ছয় ছয়টি সাত সাতটি আট আটটি নয় দশ দশটি বিশ কুড়ি শত হাজার লাখ লক্ষ কোটি",
    ),
    "cs": (
        "leden ledna února únor března březen dubna duben května květen června červen července červenec srpna srpen "
        "září října říjen listopadu listopad prosince prosinec", "rok* n.l př",
        "dva dvě tři čtyři pět šest sedm osm devět deset sto tisíc milion*",
    ),
    "de": (
        "januar jänner februar märz april mai juni juli august september oktober november dezember", "n v chr jahr*",
        "zwei drei vier fünf sechs sieben acht neun zehn elf zwölf zwanzig dreißig hundert tausend",
    ),
    "el": (
        "ιανουαρίου ιανουάριο* φεβρουαρίου φεβρουάριο* μαρτίου μάρτιο* απριλίου απρίλιο* μαΐου μάιο* ιουνίου ιούνιο* "
        "ιουλίου ιούλιο* αυγούστου αύγουστο* σεπτεμβρίου σεπτέμβριο* οκτωβρίου οκτώβριο* νοεμβρίου νοέμβριο* "
        "δεκεμβρίου δεκέμβριο*", "μ.χ π.χ",
        "δύο δυο τρία τρεις τέσσερα τέσσερις πέντε έξι επτά εφτά οκτώ οχτώ εννέα εννιά δέκα εκατό χίλια",
    ),
    "en": (
        "january february march april may june july august september october november december jan feb mar apr jun jul "
        "aug sept oct nov dec", "ad bc ce bce",
        "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
        "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred* thousand* million* billion* "
        "dozen* half",
    ),
    "es": (
        "enero febrero marzo abril mayo junio julio agosto septiembre setiembre octubre noviembre diciembre",
        "d a d.c a.c e.c",
        "dos tres cuatro cinco seis siete ocho nueve diez once doce veinte treinta cuarenta cincuenta cien ciento mil "
        "millones",
    ),
    "fi": (
        "tammiku* helmiku* maalisku* huhtiku* toukoku* kesäku* heinäku* eloku* syysku* lokaku* marrasku* jouluku*",
        "eaa jaa eKr jKr",
        "kaksi kolme neljä viisi kuusi seitsemän kahdeksan yhdeksän kymmenen sata tuhat miljoona*",
    ),
    "fr": (
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre", "apr av ap",
        "deux trois quatre cinq six sept huit neuf dix onze douze vingt trente quarante cinquante cent cents mille "
        "millions",
    ),
    "hi": (
        "जनवरी फरवरी फ़रवरी मार्च अप्रैल मई जून जुलाई अगस्त सितंबर सितम्बर अक्टूबर अक्तूबर नवंबर नवम्बर दिसंबर दिसम्बर",
        "ई ईस्वी ईसवी ईसा में",
        "दो तीन चार पाँच पांच छह छः सात आठ नौ दस ग्यारह बारह बीस तीस चालीस पचास सौ हज़ार हजार लाख करोड़",
    ),
    "id": (
        "januari februari maret april mei juni juli agustus september oktober november desember", "m sm masehi",
        "dua tiga empat lima enam tujuh delapan sembilan sepuluh sebelas puluhan seratus ratusan seribu ribuan sejuta",
    ),
    "it": (
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre", "d a",
        "due tre quattro cinque sei sette otto nove dieci undici dodici venti trenta cento mille milioni",
    ),
    "ko": (
        "", "",
        "두 둘 세 셋 네 넷 다섯 여섯 일곱 여덟 아홉 열 열두 스물 서른 마흔 쉰 수십 수백 수천",
    ),
    "mr": (
        "जानेवारी फेब्रुवारी मार्च एप्रिल मे जून जुलै ऑगस्ट सप्टेंबर ऑक्टोबर नोव्हेंबर डिसेंबर", "साली इ",
        "दोन तीन चार पाच सहा सात आठ नऊ दहा वीस शंभर हजार लाख कोटी",
    ),
    "nl": (
        "januari februari maart april mei juni juli augustus september oktober november december", "n v chr",
        "twee drie vier vijf zes zeven acht negen tien elf twaalf twintig honderd duizend miljoen",
    ),
    "pl": (
        "stycznia styczeń lutego luty marca marzec kwietnia kwiecień maja maj czerwca czerwiec lipca lipiec sierpnia "
        "sierpień września wrzesień października październik listopada listopad grudnia grudzień", "rok* r n.e p.n.e",
        "dwa dwie dwóch trzy trzech cztery czterech pięć sześć siedem osiem dziewięć dziesięć sto tysiąc milion*",
    ),
    "pt": (
        "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro", "d a",
        "dois duas três quatro cinco seis sete oito nove dez onze doze vinte trinta cem mil milhões",
    ),
    "ro": (
        "ianuarie februarie martie aprilie mai iunie iulie august septembrie octombrie noiembrie decembrie", "d î",
        "doi două trei patru cinci șase şase șapte şapte opt nouă zece douăzeci sută sute mie mii milioane",
    ),
    "ru": (
        "январ* феврал* март марта марте апрел* май мая мае июн* июл* август августа августе сентябр* октябр* ноябр* "
        "декабр*", "г год года году годы годах годов н до",
        "два две двух три трёх трех четыре четырёх пять пяти шесть семь восемь девять десять сто тысяча тысячи "
        "миллион*",
    ),
    "sw": (
        "januari februari machi aprili mei juni julai agosti septemba oktoba novemba desemba",
        "mwaka miaka mnamo tangu hadi baada kabla ya karne bk kk",
        "mbili wawili miwili mawili viwili tatu watatu mitatu matatu vitatu nne wanne minne tano watano sita saba nane "
        "tisa kumi ishirini mia elfu milioni",
    ),
    "ta": (
        "ஜனவரி பிப்ரவரி மார்ச் ஏப்ரல் மே ஜூன் ஜூலை ஆகஸ்ட் செப்டம்பர் அக்டோபர் நவம்பர் டிசம்பர்", "ஆம் ஆண்டு*",
        "இரண்டு மூன்று நான்கு ஐந்து ஆறு ஏழு எட்டு ஒன்பது பத்து நூறு ஆயிரம் லட்சம் கோடி",
    ),
    "te": (
        "జనవరి ఫిబ్రవరి మార్చి ఏప్రిల్ మే జూన్ జూలై జులై ఆగస్టు ఆగష్టు సెప్టెంబర్ సెప్టెంబరు అక్టోబర్ అక్టోబరు నవంబర్ నవంబరు డిసెంబర్ డిసెంబరు",
        "సంవత్సర* లో క్రీ",
        "రెండు మూడు నాలుగు ఐదు ఆరు ఏడు ఎనిమిది తొమ్మిది పది ఇరవై వంద వేయి లక్ష కోటి ఇద్దరు ముగ్గురు",
    ),
    "th": (
        "มกราคม กุมภาพันธ์ มีนาคม เมษายน พฤษภาคม มิถุนายน กรกฎาคม สิงหาคม กันยายน ตุลาคม พฤศจิกายน ธันวาคม", "",
        "",
    ),
    "tr": (
        "ocak* şubat* mart* nisan* mayıs* haziran* temmuz* ağustos* eylül* ekim* kasım* aralık*", "yıl* ms mö",
        "iki üç dört beş altı yedi sekiz dokuz on yirmi otuz kırk elli yüz bin milyon",
    ),
    "ur": (
        "جنوری فروری مارچ اپریل مئی جون جولائی اگست ستمبر اکتوبر نومبر دسمبر", "ء میں",
        "دو تین چار پانچ چھ سات آٹھ نو دس بیس سو ہزار لاکھ کروڑ",
    ),
    "vi": (
        "tháng", "scn tcn",
        "hai ba bốn sáu bảy tám chín mười trăm nghìn ngàn triệu",
    ),
}  # fmt: skip
_NUMERAL_LAST = frozenset(("sw",))  # languages whose numerals follow the noun
_LONG_YEARS = frozenset(("th",))  # the Buddhist era
_DATE = re.compile(r"(?<!\d)\d{1,4}([-/.])\d{1,2}\1\d{1,4}(?!\d)|[\d〇一二三四五六七八九十]\s*[年月日년월일]")
_NO_SPACE = r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]"  # Thai, kana, Chinese, Hangul
_YEAR = re.compile(rf"(?<![\d.,])(1\d{{3}}|2[0-5]\d\d)(?!\d|[.,]\d|{_NO_SPACE})")
# Numerals, and the signs that stand behind them when something is counted. `千葉` is a place.
_CHINESE_NUMBER = re.compile(
    r"[约約]?[零〇一二两兩三四五六七八九十百千万萬亿億兆半]+[个個名人次种種倍天岁歳座位层層元円本回つ枚台匹艘只条條部世紀纪分秒時时間间度]{0,2}"
)
_CHINESE = frozenset(("zh", "ja"))
_NAME_SIGNS = re.compile(r"\w[·・＝]\w|^[《『「].+[》』」]$")
_BETWEEN = re.compile(r"[\s\-–,()/]+")


@lru_cache(maxsize=65536)
def answer_type(answer: str, language: str) -> str:
    """date, number, name or other, of an answer in a language (a name or a code); its first 200 characters decide."""
    answer = unicodedata.normalize("NFC", answer[:_LOOKED_AT]).strip()
    plain = "".join(str(unicodedata.digit(char)) if char.isdigit() else char for char in answer)
    code = code_of(language)
    if _is_date(plain, code):
        return "date"
    words = [word for word in _BETWEEN.split(plain) if word]
    if _is_number(plain, words, code):
        return "number"
    lettered = [word for word in words if word[0].isalpha()]
    if any(word[0].isupper() for word in lettered) and all(word[0].isupper() for word in lettered if len(word) > 3):
        return "name"
    return "name" if _NAME_SIGNS.search(plain) else "other"


def _is_date(plain: str, code: str) -> bool:
    if _DATE.search(plain):
        return True
    digit = any(char.isdigit() for char in plain)
    words = [word for word in map(_bare, _BETWEEN.split(plain)) if word]
    months = _matcher(code, 0)
    if code == "th":
        return bool(months.search(plain)) or (digit and _year(plain, code))
    named = [bool(months.fullmatch(word)) for word in words]
    return (any(named) and (digit or all(named))) or (digit and _year(plain, code))


def _year(plain: str, code: str) -> bool:
    """Whether the text contains a year, and no word follows that the number could count."""
    for found in _YEAR.finditer(plain):
        if found[1] > "2099" and code not in _LONG_YEARS:
            continue
        beside = re.match(r"\s+([^\W\d]\S*)", plain[found.end() :])
        if code in _NUMERAL_LAST and beside is None:
            beside = re.search(r"([^\W\d]\S*)\s+$", plain[: found.start()])
        if beside is None or _matcher(code, 1).fullmatch(_bare(beside[1])):
            return True
    return False


def _is_number(plain: str, words: list[str], code: str) -> bool:
    digit = re.search(r"\d", plain)
    if digit:
        return not any(word[0].isupper() for word in plain[: digit.start()].split())
    if code in _CHINESE and _CHINESE_NUMBER.fullmatch(plain):
        return True
    if not words or not _matcher(code, 2).fullmatch(_bare(words[0])):
        return False
    return not words[0][0].isupper() or not any(word[0].isupper() for word in words[1:])


def _bare(word: str) -> str:
    return word.strip(".,;:'\"()").lower()


@lru_cache(maxsize=256)
def _matcher(code: str, column: int) -> re.Pattern[str]:
    """One of a language's lists of words as a pattern; it matches nothing where there is no list."""
    words = (unicodedata.normalize("NFC", word) for word in WORDS.get(code, ("", "", ""))[column].lower().split())
    return re.compile("|".join(re.escape(word).replace(r"\*", r"\S*") for word in words) or r"(?!)")
