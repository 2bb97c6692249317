// Names of time zones in English, from CLDR 48: standard time, daylight time, either | and their short forms; then the zones.
(native) => {
  native.demand("intl");
  const names = new Map();
  const NAMES = `Greenwich Mean Time|||GMT\tAfrica/Abidjan Africa/Accra Africa/Bamako Africa/Banjul Africa/Bissau Africa/Conakry Africa/Dakar Africa/Freetown Africa/Lome Africa/Monrovia Africa/Nouakchott Africa/Ouagadougou Africa/Sao_Tome Africa/Timbuktu America/Danmarkshavn Atlantic/Reykjavik Atlantic/St_Helena Etc/GMT+0 Etc/GMT-0 Etc/GMT0 Etc/Greenwich Greenwich Iceland Antarctica/Troll Europe/Guernsey Europe/Isle_of_Man Europe/Jersey
East Africa Time\tAfrica/Addis_Ababa Africa/Asmara Africa/Asmera Africa/Dar_es_Salaam Africa/Djibouti Africa/Kampala Africa/Mogadishu Africa/Nairobi Indian/Antananarivo Indian/Comoro Indian/Mayotte
Central European Standard Time\tAfrica/Algiers Africa/Tunis
West Africa Time\tAfrica/Bangui Africa/Brazzaville Africa/Douala Africa/Kinshasa Africa/Lagos Africa/Libreville Africa/Luanda Africa/Malabo Africa/Ndjamena Africa/Niamey Africa/Porto-Novo
Central Africa Time\tAfrica/Blantyre Africa/Bujumbura Africa/Gaborone Africa/Harare Africa/Juba Africa/Khartoum Africa/Kigali Africa/Lubumbashi Africa/Lusaka Africa/Maputo Africa/Windhoek
Eastern European Standard Time|Eastern European Summer Time|Eastern European Time\tAfrica/Cairo Egypt Asia/Beirut Asia/Famagusta Asia/Gaza Asia/Hebron Asia/Nicosia Europe/Nicosia EET Europe/Athens Europe/Bucharest Europe/Chisinau Europe/Tiraspol Europe/Helsinki Europe/Kiev Europe/Kyiv Europe/Uzhgorod Europe/Zaporozhye Europe/Mariehamn Europe/Riga Europe/Sofia Europe/Tallinn Europe/Vilnius
Central European Standard Time|Central European Summer Time|Central European Time\tAfrica/Ceuta Arctic/Longyearbyen Atlantic/Jan_Mayen CET Europe/Brussels MET Europe/Amsterdam Europe/Andorra Europe/Belgrade Europe/Berlin Europe/Bratislava Europe/Budapest Europe/Busingen Europe/Copenhagen Europe/Gibraltar Europe/Ljubljana Europe/Luxembourg Europe/Madrid Europe/Malta Europe/Monaco Europe/Oslo Europe/Paris Europe/Podgorica Europe/Prague Europe/Rome Europe/San_Marino Europe/Sarajevo Europe/Skopje Europe/Stockholm Europe/Tirane Europe/Vaduz Europe/Vatican Europe/Vienna Europe/Warsaw Poland Europe/Zagreb Europe/Zurich
South Africa Standard Time\tAfrica/Johannesburg Africa/Maseru Africa/Mbabane
Eastern European Standard Time\tAfrica/Tripoli Libya Europe/Kaliningrad
Hawaii-Aleutian Standard Time|Hawaii-Aleutian Daylight Time|Hawaii-Aleutian Time|HAST|HADT|HAT\tAmerica/Adak America/Atka US/Aleutian
Alaska Standard Time|Alaska Daylight Time|Alaska Time|AKST|AKDT|AKT\tAmerica/Anchorage America/Juneau America/Metlakatla America/Nome America/Sitka America/Yakutat US/Alaska
Atlantic Standard Time|||AST\tAmerica/Anguilla America/Antigua America/Aruba America/Barbados America/Blanc-Sablon America/Curacao America/Dominica America/Grenada America/Guadeloupe America/Kralendijk America/Lower_Princes America/Marigot America/Martinique America/Montserrat America/Port_of_Spain America/Puerto_Rico America/Santo_Domingo America/St_Barthelemy America/St_Kitts America/St_Lucia America/St_Thomas America/St_Vincent America/Tortola America/Virgin
Brasilia Standard Time\tAmerica/Araguaina America/Bahia America/Belem America/Fortaleza America/Maceio America/Recife America/Santarem America/Sao_Paulo Brazil/East
Argentina Standard Time\tAmerica/Argentina/Buenos_Aires America/Buenos_Aires America/Argentina/Catamarca America/Argentina/ComodRivadavia America/Catamarca America/Argentina/Cordoba America/Cordoba America/Rosario America/Argentina/Jujuy America/Jujuy America/Argentina/La_Rioja America/Argentina/Mendoza America/Mendoza America/Argentina/Rio_Gallegos America/Argentina/Salta America/Argentina/San_Juan America/Argentina/San_Luis America/Argentina/Tucuman America/Argentina/Ushuaia
Paraguay Standard Time\tAmerica/Asuncion
Eastern Standard Time|||EST\tAmerica/Atikokan America/Cancun America/Cayman America/Coral_Harbour America/Jamaica America/Panama EST Jamaica
Central Standard Time|||CST\tAmerica/Bahia_Banderas America/Belize America/Chihuahua America/Costa_Rica America/El_Salvador America/Guatemala America/Managua America/Merida America/Mexico_City America/Monterrey America/Regina America/Swift_Current America/Tegucigalpa Canada/Saskatchewan Mexico/General
Amazon Standard Time\tAmerica/Boa_Vista America/Campo_Grande America/Cuiaba America/Manaus Brazil/West America/Porto_Velho
Colombia Standard Time\tAmerica/Bogota
Mountain Standard Time|Mountain Daylight Time|Mountain Time|MST|MDT|MT\tAmerica/Boise America/Cambridge_Bay America/Ciudad_Juarez America/Denver America/Edmonton America/Inuvik America/Shiprock America/Yellowknife Canada/Mountain MST7MDT Navajo US/Mountain
Venezuela Time\tAmerica/Caracas
French Guiana Time\tAmerica/Cayenne
Central Standard Time|Central Daylight Time|Central Time|CST|CDT|CT\tAmerica/Chicago America/Indiana/Knox America/Indiana/Tell_City America/Knox_IN America/Matamoros America/Menominee America/North_Dakota/Beulah America/North_Dakota/Center America/North_Dakota/New_Salem America/Ojinaga America/Rainy_River America/Rankin_Inlet America/Resolute America/Winnipeg CST6CDT Canada/Central US/Central US/Indiana-Starke
Chile Summer Time\tAmerica/Coyhaique
Mountain Standard Time|||MST\tAmerica/Creston America/Dawson_Creek America/Fort_Nelson America/Phoenix MST US/Arizona
Yukon Time\tAmerica/Dawson America/Whitehorse Canada/Yukon
Eastern Standard Time|Eastern Daylight Time|Eastern Time|EST|EDT|ET\tAmerica/Detroit America/Fort_Wayne America/Grand_Turk America/Indiana/Indianapolis America/Indiana/Marengo America/Indiana/Petersburg America/Indiana/Vevay America/Indiana/Vincennes America/Indiana/Winamac America/Indianapolis America/Iqaluit America/Kentucky/Louisville America/Kentucky/Monticello America/Louisville America/Montreal America/Nassau America/New_York America/Nipigon America/Pangnirtung America/Port-au-Prince America/Thunder_Bay America/Toronto Canada/Eastern EST5EDT US/East-Indiana US/Eastern US/Michigan
Acre Standard Time\tAmerica/Eirunepe America/Porto_Acre America/Rio_Branco Brazil/Acre
Pacific Standard Time|Pacific Daylight Time|Pacific Time|PST|PDT|PT\tAmerica/Ensenada America/Los_Angeles America/Santa_Isabel America/Tijuana America/Vancouver Canada/Pacific Mexico/BajaNorte PST8PDT US/Pacific
Atlantic Standard Time|Atlantic Daylight Time|Atlantic Time|AST|ADT|AT\tAmerica/Glace_Bay America/Goose_Bay America/Halifax America/Moncton America/Thule Atlantic/Bermuda Canada/Atlantic
Greenland Standard Time|Greenland Summer Time|Greenland Time\tAmerica/Godthab America/Nuuk America/Scoresbysund
Ecuador Time\tAmerica/Guayaquil
Guyana Time\tAmerica/Guyana
Cuba Standard Time|Cuba Daylight Time|Cuba Time\tAmerica/Havana Cuba
Mexican Pacific Standard Time\tAmerica/Hermosillo America/Mazatlan Mexico/BajaSur
Bolivia Time\tAmerica/La_Paz
Peru Standard Time\tAmerica/Lima
St. Pierre & Miquelon Standard Time|St. Pierre & Miquelon Daylight Time|St. Pierre & Miquelon Time\tAmerica/Miquelon
Uruguay Standard Time\tAmerica/Montevideo
Fernando de Noronha Standard Time\tAmerica/Noronha Brazil/DeNoronha
Suriname Time\tAmerica/Paramaribo
Chile Standard Time|Chile Summer Time|Chile Time\tAmerica/Santiago Chile/Continental
Newfoundland Standard Time|Newfoundland Daylight Time|Newfoundland Time\tAmerica/St_Johns Canada/Newfoundland
Australian Western Standard Time\tAntarctica/Casey Australia/Perth Australia/West
Davis Time\tAntarctica/Davis
Dumont d’Urville Time\tAntarctica/DumontDUrville
Australian Eastern Standard Time|Australian Eastern Daylight Time|Australian Eastern Time\tAntarctica/Macquarie Australia/ACT Australia/Canberra Australia/NSW Australia/Sydney Australia/Currie Australia/Hobart Australia/Tasmania Australia/Melbourne Australia/Victoria
Mawson Time\tAntarctica/Mawson
New Zealand Standard Time|New Zealand Daylight Time|New Zealand Time\tAntarctica/McMurdo Antarctica/South_Pole NZ Pacific/Auckland
Rothera Time\tAntarctica/Rothera
Syowa Time\tAntarctica/Syowa
Vostok Time\tAntarctica/Vostok
Arabian Standard Time\tAsia/Aden Asia/Baghdad Asia/Bahrain Asia/Kuwait Asia/Qatar Asia/Riyadh
Kazakhstan Time\tAsia/Almaty Asia/Aqtau Asia/Aqtobe Asia/Atyrau Asia/Oral Asia/Qostanay Asia/Qyzylorda
Kamchatka Standard Time\tAsia/Anadyr Asia/Kamchatka
Turkmenistan Standard Time\tAsia/Ashgabat Asia/Ashkhabad
Azerbaijan Standard Time\tAsia/Baku
Indochina Time\tAsia/Bangkok Asia/Ho_Chi_Minh Asia/Saigon Asia/Phnom_Penh Asia/Vientiane
Krasnoyarsk Standard Time\tAsia/Barnaul Asia/Krasnoyarsk Asia/Novokuznetsk Asia/Novosibirsk Asia/Tomsk
Kyrgyzstan Time\tAsia/Bishkek
Brunei Time\tAsia/Brunei
India Standard Time\tAsia/Calcutta Asia/Kolkata Asia/Colombo
Yakutsk Standard Time\tAsia/Chita Asia/Khandyga Asia/Yakutsk
Ulaanbaatar Standard Time\tAsia/Choibalsan Asia/Ulaanbaatar Asia/Ulan_Bator
China Standard Time\tAsia/Chongqing Asia/Chungking Asia/Harbin Asia/Shanghai PRC Asia/Macao Asia/Macau
Bangladesh Standard Time\tAsia/Dacca Asia/Dhaka
Timor-Leste Time\tAsia/Dili
Gulf Standard Time\tAsia/Dubai Asia/Muscat
Tajikistan Time\tAsia/Dushanbe
Hong Kong Standard Time\tAsia/Hong_Kong Hongkong
Khovd Standard Time\tAsia/Hovd
Irkutsk Standard Time\tAsia/Irkutsk
Türkiye Standard Time\tAsia/Istanbul Europe/Istanbul Turkey
Western Indonesia Time\tAsia/Jakarta Asia/Pontianak
Eastern Indonesia Time\tAsia/Jayapura
Israel Standard Time|Israel Daylight Time|Israel Time\tAsia/Jerusalem Asia/Tel_Aviv Israel
Afghanistan Time\tAsia/Kabul
Pakistan Standard Time\tAsia/Karachi
Nepal Time\tAsia/Kathmandu Asia/Katmandu
Malaysia Time\tAsia/Kuala_Lumpur Asia/Kuching
Magadan Standard Time\tAsia/Magadan Asia/Sakhalin Asia/Srednekolymsk
Central Indonesia Time\tAsia/Makassar Asia/Ujung_Pandang
Philippine Standard Time\tAsia/Manila
Omsk Standard Time\tAsia/Omsk
Korean Standard Time\tAsia/Pyongyang Asia/Seoul ROK
Myanmar Time\tAsia/Rangoon Asia/Yangon
Uzbekistan Standard Time\tAsia/Samarkand Asia/Tashkent
Singapore Standard Time\tAsia/Singapore Singapore
Taiwan Standard Time\tAsia/Taipei ROC
Georgia Standard Time\tAsia/Tbilisi
Iran Standard Time\tAsia/Tehran Iran
Bhutan Time\tAsia/Thimbu Asia/Thimphu
Japan Standard Time\tAsia/Tokyo Japan
Vladivostok Standard Time\tAsia/Ust-Nera Asia/Vladivostok
Yekaterinburg Standard Time\tAsia/Yekaterinburg
Armenia Standard Time\tAsia/Yerevan
Azores Standard Time|Azores Summer Time|Azores Time\tAtlantic/Azores
Western European Standard Time|Western European Summer Time|Western European Time\tAtlantic/Canary Atlantic/Faeroe Atlantic/Faroe Atlantic/Madeira Europe/Lisbon Portugal WET
Cape Verde Standard Time\tAtlantic/Cape_Verde
South Georgia Time\tAtlantic/South_Georgia
Falkland Islands Standard Time\tAtlantic/Stanley
Australian Central Standard Time|Australian Central Daylight Time|Australian Central Time\tAustralia/Adelaide Australia/South Australia/Broken_Hill Australia/Yancowinna
Australian Eastern Standard Time\tAustralia/Brisbane Australia/Queensland Australia/Lindeman
Australian Central Standard Time\tAustralia/Darwin Australia/North
Australian Central Western Standard Time\tAustralia/Eucla
Lord Howe Standard Time|Lord Howe Daylight Time|Lord Howe Time\tAustralia/LHI Australia/Lord_Howe
Easter Island Standard Time|Easter Island Summer Time|Easter Island Time\tChile/EasterIsland Pacific/Easter
Greenwich Mean Time|Irish Standard Time|Ireland Time|GMT\tEire Europe/Dublin
Samara Standard Time\tEurope/Astrakhan Europe/Samara Europe/Saratov Europe/Ulyanovsk
Greenwich Mean Time|British Summer Time|United Kingdom Time|GMT\tEurope/Belfast Europe/London GB GB-Eire
Moscow Standard Time\tEurope/Kirov Europe/Minsk Europe/Moscow W-SU Europe/Simferopol Europe/Volgograd
Hawaii-Aleutian Standard Time|||HST\tHST Pacific/Honolulu Pacific/Johnston US/Hawaii
Indian Ocean Time\tIndian/Chagos
Christmas Island Time\tIndian/Christmas
Cocos Islands Time\tIndian/Cocos
French Southern & Antarctic Time\tIndian/Kerguelen
Seychelles Time\tIndian/Mahe
Maldives Time\tIndian/Maldives
Mauritius Standard Time\tIndian/Mauritius
Réunion Time\tIndian/Reunion
Marshall Islands Time\tKwajalein Pacific/Kwajalein Pacific/Majuro
Chatham Standard Time|Chatham Daylight Time|Chatham Time\tNZ-CHAT Pacific/Chatham
Samoa Standard Time\tPacific/Apia
Chuuk Time\tPacific/Chuuk Pacific/Truk Pacific/Yap
Vanuatu Standard Time\tPacific/Efate
Phoenix Islands Time\tPacific/Enderbury Pacific/Kanton
Tokelau Time\tPacific/Fakaofo
Fiji Standard Time\tPacific/Fiji
Tuvalu Time\tPacific/Funafuti
Galapagos Time\tPacific/Galapagos
Gambier Time\tPacific/Gambier
Solomon Islands Time\tPacific/Guadalcanal
Chamorro Standard Time\tPacific/Guam Pacific/Saipan
Line Islands Time\tPacific/Kiritimati
Kosrae Time\tPacific/Kosrae
Marquesas Time\tPacific/Marquesas
American Samoa Standard Time\tPacific/Midway Pacific/Pago_Pago Pacific/Samoa US/Samoa
Nauru Time\tPacific/Nauru
Niue Time\tPacific/Niue
Norfolk Island Standard Time|Norfolk Island Daylight Time|Norfolk Island Time\tPacific/Norfolk
New Caledonia Standard Time\tPacific/Noumea
Palau Time\tPacific/Palau
Pitcairn Time\tPacific/Pitcairn
Pohnpei Time\tPacific/Pohnpei Pacific/Ponape
Papua New Guinea Time\tPacific/Port_Moresby
Cook Islands Standard Time\tPacific/Rarotonga
Tahiti Time\tPacific/Tahiti
Gilbert Islands Time\tPacific/Tarawa
Tonga Standard Time\tPacific/Tongatapu
Wake Island Time\tPacific/Wake
Wallis & Futuna Time\tPacific/Wallis`;
  for (const line of NAMES.split("\n")) {
    const [forms, zones] = line.split("\t");
    const [standard, daylight, generic, shortStandard, shortDaylight, shortGeneric] = forms.split("|");
    const found = {
      long: [standard, daylight], longGeneric: generic || standard, short: [shortStandard, shortDaylight],
      shortGeneric: shortGeneric || shortStandard,
    };
    for (const zone of zones.split(" ")) names.set(zone, found);
  }
  native.intl.zoneNames = names;
};
