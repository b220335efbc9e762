package delayserver

// What a connection does with a peer that a real server seldom is. The peer is a script on a real socket.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

type peer struct {
	t    *testing.T
	conn net.Conn
}

// request reads one frame of the client.
func (p *peer) request() (id int64, operation string, arguments map[string]any) {
	header := make([]byte, 4)
	if _, err := io.ReadFull(p.conn, header); err != nil {
		return 0, "", nil
	}
	payload := make([]byte, binary.LittleEndian.Uint32(header))
	if _, err := io.ReadFull(p.conn, payload); err != nil {
		return 0, "", nil
	}
	whole := value(p.t, payload).([]any)
	return whole[0].(int64), whole[1].(string), whole[2].(map[string]any)
}

func (p *peer) answer(parts ...any) {
	payload, err := msgpack.Marshal(parts)
	if err != nil {
		p.t.Error(err)
	}
	p.frame(payload)
}

func (p *peer) frame(payload []byte) {
	header := make([]byte, 4)
	binary.LittleEndian.PutUint32(header, uint32(len(payload)))
	_, _ = p.conn.Write(append(header, payload...))
}

func (p *peer) greet() {
	id, _, _ := p.request()
	p.answer(id, true, map[string]any{"version": 1, "server_id": "5f3a9c0d2b71", "server_us": 1799999940000000, "role": "server", "limits": map[string]any{}})
}

// scripted connects a client with a peer that runs script.
func scripted(t *testing.T, script func(*peer)) *Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		script(&peer{t, conn})
	}()
	t.Cleanup(func() {
		listener.Close()
		<-ended
	})
	client, err := Dial(patient(t), listener.Addr().String(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func pingError(t *testing.T, script func(p *peer, id int64)) error {
	t.Helper()
	client := scripted(t, func(p *peer) {
		p.greet()
		id, _, _ := p.request()
		script(p, id)
	})
	_, err := client.Ping(patient(t))
	return err
}

func TestAPeerThatBreaksTheProtocolIsALostConnection(t *testing.T) {
	for name, script := range map[string]func(p *peer, id int64){
		"a foreign id":        func(p *peer, id int64) { p.answer(id+1, true, map[string]any{}) },
		"no reply":            func(p *peer, id int64) { p.frame([]byte{7}) },
		"an end":              func(p *peer, id int64) {},
		"a frame that is cut": func(p *peer, id int64) { _, _ = p.conn.Write([]byte{9, 0, 0, 0, 0x93}) },
		"deep nesting":        func(p *peer, id int64) { p.frame(append([]byte{0x93, 1, 0xc3}, bytes.Repeat([]byte{0x91}, 1<<20)...)) },
		"a frame of 4 GiB":    func(p *peer, id int64) { _, _ = p.conn.Write([]byte{255, 255, 255, 255}) },
	} {
		err := pingError(t, script)
		var without *NoReplyError
		if !errors.As(err, &without) || !without.MaybeDone || !errors.Is(err, ErrConnectionLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnErrorWithTheIdZeroEndsTheConnectionAndIsNamed(t *testing.T) {
	err := pingError(t, func(p *peer, id int64) {
		p.answer(0, false, map[string]any{"error": FrameTimeout, "message": "too slow"})
	})
	if NameOf(err) != FrameTimeout || !errors.Is(err, ErrConnectionLost) {
		t.Error(err)
	}
}

func TestANameThatIsNotKnownIsFinal(t *testing.T) {
	err := pingError(t, func(p *peer, id int64) {
		p.answer(id, false, map[string]any{"error": "novel", "message": "new", "retry_after_ms": 5, "more": []int{1}})
	})
	var named *Error
	if !errors.As(err, &named) || named.Again() || named.RetryAfter != 5*time.Millisecond {
		t.Error(err)
	}
}

func TestAServerThatIsNotReadyIsAskedAgain(t *testing.T) {
	client := scripted(t, func(p *peer) {
		for tries := 0; tries < 2; tries++ {
			id, _, _ := p.request()
			p.answer(id, false, map[string]any{"error": NotReady, "message": "recovering", "retry_after_ms": 1})
		}
		p.greet()
	})
	if server := client.Server(); server.ID != "5f3a9c0d2b71" || server.Limits.FrameItemsMax != 262144 {
		t.Errorf("%+v", server)
	}
}

func TestAMessageThatComesForACallerThatHasGoneIsGivenBack(t *testing.T) {
	pulling, cancel := context.WithCancel(patient(t))
	nacked := make(chan map[string]any, 1)
	client := scripted(t, func(p *peer) {
		p.greet()
		pull, _, _ := p.request()
		cancel()
		id, operation, arguments := p.request()
		if operation != "cancel_wait" || arguments["id"] != pull {
			t.Error(operation, arguments)
		}
		p.answer(id, true, map[string]any{"ended": false})
		p.answer(pull, true, map[string]any{
			"count": 1, "subject": "s", "server_ids": []string{"5f3a9c0d2b71"}, "server_index": 0, "sequence": 7, "due_ms": 1, "accepted_us": 1,
			"dispatched_us": 1, "attempt": 1, "message_ids": []byte{}, "message_id_length": 0, "properties": []byte{}, "properties_length": 0,
			"bodies": []byte("x"), "body_length": 1, "delivery": 99,
		})
		id, operation, arguments = p.request()
		if operation != "nack" {
			t.Error(operation)
		}
		p.answer(id, true, map[string]any{"nacked": 1, "unknown": 0})
		nacked <- arguments
	})
	if _, err := client.Pull(pulling, Pull{Subject: "s", Group: "g", Wait: time.Minute}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if arguments := <-nacked; arguments["deliveries"] != int64(99) || arguments["delay_ms"] != int64(0) || arguments["group"] != "g" {
		t.Error(arguments)
	}
}

func TestAColumnOfCountlessRowsIsRefused(t *testing.T) {
	client := scripted(t, func(p *peer) {
		p.greet()
		id, _, _ := p.request()
		p.answer(id, true, map[string]any{"count": int64(1) << 50, "subject": "s", "sequence": 7})
		p.request()
	})
	if rows, err := client.Pull(patient(t), Pull{Subject: "s", Group: "g"}); err == nil {
		t.Error(rows)
	}
}

func TestTheEndOfAContextEndsACallAndItsPlaceStaysTakenUntilTheReply(t *testing.T) {
	acking, cancel := context.WithCancel(patient(t))
	release := make(chan struct{})
	client := scripted(t, func(p *peer) {
		p.greet()
		ack, _, _ := p.request()
		cancel()
		<-release
		p.answer(ack, true, map[string]any{"acked": 1, "unknown": 0})
		ping, _, _ := p.request()
		p.answer(ping, true, map[string]any{"server_us": 5})
		p.request()
	})
	_, err := client.Ack(acking, "s", "g", 1)
	var without *NoReplyError
	if !errors.Is(err, context.Canceled) || !errors.As(err, &without) || !without.MaybeDone || len(client.others) != 1 {
		t.Error(err, len(client.others))
	}
	close(release)
	if _, err := client.Ping(patient(t)); err != nil || len(client.others) != 0 {
		t.Error(err, len(client.others))
	}
}

func TestAClosedClientSaysSo(t *testing.T) {
	client := scripted(t, func(p *peer) {
		p.greet()
		p.request()
	})
	client.Close()
	_, err := client.Ping(patient(t))
	var without *NoReplyError
	if !errors.As(err, &without) || without.MaybeDone || !errors.Is(err, ErrClosed) || !errors.Is(err, ErrConnectionLost) {
		t.Error(err)
	}
}
