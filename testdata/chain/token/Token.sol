// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.0;

// An ERC-20 token for tests. A transfer to 0xdead answers false, as some tokens do where
// others revert. token.hex is its creation code: solc 0.8.30, optimized, EVM version paris.
contract Token {
    uint8 public constant decimals = 6;
    mapping(address => uint256) public balanceOf;
    event Transfer(address indexed from, address indexed to, uint256 value);

    constructor(address owner) {
        balanceOf[owner] = 1_000_000_000;
        emit Transfer(address(0), owner, 1_000_000_000);
    }

    function transfer(address to, uint256 value) external returns (bool) {
        require(balanceOf[msg.sender] >= value, "balance too low");
        if (to == address(0xdead)) return false;
        balanceOf[msg.sender] -= value;
        balanceOf[to] += value;
        emit Transfer(msg.sender, to, value);
        return true;
    }
}
