module.exports = { networks: { hardhat: { chainId: 1337, mining: { auto: false, interval: 0 } } } };
