// What the page shows first. Pictures: samples/SOURCES.md; sentences: written for this page.

export const PICTURES = ["astronaut", "coffee", "hopper", "cat", "camera"];

export const pictureAddress = (name) => `/samples/${name}.jpg`;

export const WITH_TEXT = ["notice"];

export const SENTENCES = {
  happy: "周末和朋友去海边玩，开心得不得了！",
  sad: "外婆走了以后，我一个人坐在她的房间里哭了很久。",
  angry: "排了两个小时的队，居然有人直接插到最前面，气死我了！",
  fear: "半夜听见有人在撬门，我吓得一动也不敢动。",
  surprise: "什么？他居然一个月就学会了弹钢琴，真没想到！",
  neutral: "今天多云，最高气温二十度。",
};
