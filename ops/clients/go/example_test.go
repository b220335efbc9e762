package delayserver_test

// Runnable examples. They run against the server that DELAYSERVER_SERVER names; TestMain starts one where DELAYSERVER names the command.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	delayserver "delayserver.internal/ops/clients/go"
)

// Send a message, take it, and acknowledge it. An empty list of addresses is the variable DELAYSERVER_SERVER.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := delayserver.Dial(ctx, "", delayserver.Options{Name: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	message := &delayserver.Message{Subject: "example", Body: []byte("hi"), Delay: 100 * time.Millisecond}
	if _, err := client.Send(ctx, message); err != nil {
		log.Fatal(err)
	}
	messages, err := client.Pull(ctx, delayserver.Pull{Subject: "example", Group: "billing", Wait: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	for _, message := range messages {
		fmt.Printf("%s, attempt %d\n", message.Body, message.Attempt)
	}
	if _, err := client.Ack(ctx, messages...); err != nil {
		log.Fatal(err)
	}
	// Output: hi, attempt 1
}

// A server with a token, TLS, and two addresses. The client goes on at the second one when the first one fails.
func ExampleDial_tokenAndTLS() {
	connect := func(ctx context.Context) (*delayserver.Client, error) {
		authority, err := os.ReadFile("/etc/delayserver/ca.pem")
		if err != nil {
			return nil, err
		}
		trusted := x509.NewCertPool()
		if !trusted.AppendCertsFromPEM(authority) {
			return nil, errors.New("ca.pem has no certificate")
		}
		return delayserver.Dial(ctx, "one.shop.internal:20801,two.shop.internal:20801", delayserver.Options{
			Name:  "shop",
			Token: os.Getenv("DELAYSERVER_TOKEN"),
			TLS:   &tls.Config{RootCAs: trusted},
		})
	}
	_ = connect
}

// Errors are matched by name, and by kind.
func ExampleError() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := delayserver.Dial(ctx, "", delayserver.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	_, err = client.Send(ctx, &delayserver.Message{Subject: "example", Due: time.UnixMilli(1)})
	var without *delayserver.NoReplyError
	switch {
	case errors.Is(err, delayserver.TooOld):
		fmt.Println("give another due time")
	case errors.As(err, &without) && without.MaybeDone:
		fmt.Println("send the same message again")
	}
	// Output: give another due time
}

// The end of a context ends a long poll, also at the server.
func ExampleClient_Pull_context() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := delayserver.Dial(ctx, "", delayserver.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	short, end := context.WithTimeout(ctx, 50*time.Millisecond)
	defer end()
	_, err = client.Pull(short, delayserver.Pull{Subject: "example-empty", Group: "billing", Wait: 30 * time.Second})
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}

// A message that appears only if the producer's own work is done.
func ExampleClient_Prepare() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := delayserver.Dial(ctx, "", delayserver.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	message := &delayserver.Message{Subject: "example-paid", Body: []byte("order 7")}
	prepared, err := client.Prepare(ctx, delayserver.Transaction{Group: "shop"}, message)
	if err != nil {
		log.Fatal(err)
	}
	ended, err := client.Commit(ctx, prepared.Receipt)
	if err != nil {
		log.Fatal(err)
	}
	if ended[0].Err != nil {
		log.Fatal(ended[0].Err)
	}
	fmt.Println(ended[0].Outcome)
	// Output: committed
}
