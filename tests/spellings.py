"""How texts spell an e-mail address."""

SIGNS = (
    *("@", "\uff20", "\ufe6b", "%40", "%2540", "%252540", "\\u0040", "\\\\u0040", "\\x40"),
    *("&#64;", "&#064;", "&#x40;", "&#X0040;", "&commat;", "&amp;#64;", "&amp;amp;commat;", "=40"),
)
"""What stands for `@`: in URLs, JSON, HTML and MIME, also nested."""

LOCALS = ("ada", "ada.lovelace", "ada+tag", "o'brien", '"ada lovelace"', "m\u00fcller", "a_b-c")
DOMAINS = ("example.com", "mail.example.co.uk", "m\u00fcller.example", "localhost")
LITERALS = ("[192.0.2.1]", "[IPv6:2001:db8::1]")

ADDRESSES = (
    *(f"{local}{sign}example.com" for local in LOCALS for sign in SIGNS),
    *(f"ada{sign}{domain}" for domain in DOMAINS for sign in SIGNS),
    *(f"ada{sign}{literal}" for literal in LITERALS for sign in SIGNS if sign != "=40"),
)
