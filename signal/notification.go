package signal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// MethodSignal is the method of the notification that carries a Signal.
const MethodSignal = "notifications/signal"

// JSONRPCNotification is a notification of JSON-RPC 2.0: nobody answers it.
// Its JSON form is {jsonrpc: "2.0", method, params?}. Treat it as immutable:
// then it is safe for concurrent use.
type JSONRPCNotification struct {
	Method string          // not empty
	Params json.RawMessage // a JSON object, nil for none
}

// SignalToNotification makes the bus message of a Signal: method
// "notifications/signal", params {"signal": its JSON form} (seed 002,
// signal_to_notification). It never fails.
func SignalToNotification(s Signal) JSONRPCNotification {
	params := s.append(append(make([]byte, 0, 512), `{"signal":`...), "")
	return JSONRPCNotification{Method: MethodSignal, Params: append(params, '}')}
}

// MarshalJSON gives the JSON form on one line; ErrInvalidNotification for one
// without a method or with params that are no JSON object.
func (n JSONRPCNotification) MarshalJSON() ([]byte, error) {
	if err := n.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidNotification, err)
	}
	dst := make([]byte, 0, len(n.Method)+len(n.Params)+48)
	dst = appendQuote(append(dst, `{"jsonrpc":"2.0","method":`...), n.Method)
	if n.Params == nil {
		return append(dst, '}'), nil
	}
	params, err := strictValue(bytes.Clone(n.Params))
	if err != nil {
		return nil, fmt.Errorf("%w: params: %w", ErrInvalidNotification, err)
	}
	return append(append(append(dst, `,"params":`...), params...), '}'), nil
}

func (n JSONRPCNotification) check() error {
	switch {
	case n.Method == "":
		return errors.New("no method")
	case n.Params != nil && jsontext.Value(n.Params).Kind() != '{':
		return errors.New("params is no object")
	}
	return nil
}

type notificationJSON struct {
	Version string         `json:"jsonrpc"`
	Method  string         `json:"method"`
	Params  jsontext.Value `json:"params"`
}

// UnmarshalJSON reads the JSON form strictly: a request, with its id, is no
// notification. The error is ErrInvalidNotification.
func (n *JSONRPCNotification) UnmarshalJSON(data []byte) error {
	var in notificationJSON
	err := decodeStrict(data, &in)
	if err == nil && in.Version != "2.0" {
		err = errors.New(`jsonrpc is not "2.0"`)
	}
	out := JSONRPCNotification{Method: in.Method, Params: json.RawMessage(in.Params)}
	if err == nil {
		err = out.check()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidNotification, err)
	}
	*n = out
	return nil
}
