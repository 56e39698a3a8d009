// Package evm has what a wallet needs of an EVM chain: addresses with their checksum,
// exact amounts, transactions of EIP-1559, signers, and a client of a node's JSON-RPC.
// It keeps no state; package chain does, and decides what is paid.
//
//	units, err := text.Units("0.10", 6)
//	to, err := evm.ParseAddress("0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed")
//	tx := evm.Transaction{ChainID: 1337, To: token, Data: evm.TransferData(to, units)}
//	raw, hash, err := tx.Sign(ctx, signer)
//
// Keccak-256, secp256k1 and scrypt are libraries; RLP and the ABI of ERC-20 are written
// here and compared with go-ethereum in testdata/chain.
package evm
