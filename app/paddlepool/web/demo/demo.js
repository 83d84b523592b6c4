// The demo page: a picture cut out, a sentence read, as soon as the server answers; cards for labels
// and for text in pictures; and every model.

import { addWords } from "/console/i18n.js";
import { startPage } from "/console/shell.js";
import { startClassify } from "./classify.js";
import { startModels } from "./models.js";
import { startOcr } from "./ocr.js";
import { startPictures } from "./pictures.js";
import { startTexts } from "./texts.js";
import { WORDS } from "./words.js";

addWords(WORDS);
startPictures();
startTexts();
startOcr();
startClassify();
startModels();
startPage();
