Feature: Call Task
  Functions of the node and servers elsewhere, their answers and errors

  Scenario: A function gets what `with` says
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: call, version: '1.0.0' }
    do:
      - greet:
          call: greet
          with: { name: "${ .user }" }
          output: { as: .text }
    """
    And the workflow input is:
    """yaml
    user: Ada
    """
    And calls of 'greet' answer 200:
    """yaml
    text: Hello Ada
    """
    When the workflow is executed
    Then the workflow should complete with output:
    """yaml
    Hello Ada
    """

  Scenario: A template in the endpoint is filled from the input
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: call, version: '1.0.0' }
    do:
      - getPet:
          call: http
          with: { method: get, endpoint: 'https://pets.example/v2/pet/{petId}' }
    """
    And the workflow input is:
    """yaml
    petId: 12
    """
    And calls of 'https://pets.example/v2/pet/12' answer 200:
    """yaml
    { id: 12, name: Rex }
    """
    When the workflow is executed
    Then the workflow should complete
    And the workflow output should have properties 'id', 'name'
    And the workflow output should have a 'name' property with value:
    """yaml
    Rex
    """

  Scenario: A server's error is a communication error with its status
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: call, version: '1.0.0' }
    do:
      - getPet:
          call: http
          with: { method: get, endpoint: { uri: 'https://pets.example/v2/pet/1' } }
    """
    And calls of 'https://pets.example/v2/pet/1' answer 404:
    """yaml
    no such pet
    """
    When the workflow is executed
    Then the workflow should fault with error:
    """yaml
    type: https://serverlessworkflow.io/spec/1.0.0/errors/communication
    status: 404
    instance: /do/0/getPet
    """
